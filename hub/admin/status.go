package admin

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"strings"
	"unicode/utf8"

	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/wire"
)

// getStatus answers with the status of a name: as JSON, or as a badge if the path ends with .svg.
func (s *Server) getStatus(w http.ResponseWriter, req *http.Request) error {
	name, isBadge := strings.CutSuffix(req.PathValue("name"), ".svg")
	if !isBadge {
		name = strings.TrimSuffix(name, ".json")
	}
	ref, err := report.ParseName(name)
	if err != nil {
		return err
	}
	status, err := s.status(req.Context(), ref.Name())
	switch {
	case err != nil:
		return err
	case isBadge:
		sendBadge(w, status.State)
		return nil
	case status.State == wire.StatusUnknown:
		return s.elsewhere(name, fmt.Errorf("image %s: %w", ref.Name(), catalog.ErrNotFound))
	}
	return answer.JSON(w, uncached, status)
}

// status returns the status of a name.
func (s *Server) status(ctx context.Context, name string) (wire.Status, error) {
	status := wire.Status{Name: name, State: wire.StatusUnknown, Images: []wire.ImageStatus{}}
	images, err := s.Catalog.Images(ctx, name)
	if err != nil {
		return status, err
	}
	for _, image := range images {
		one := wire.ImageStatus{Digest: image.Digest, Platform: image.Platform, State: image.State,
			Since: image.Updated, Reason: report.Redact(image.Error, name)}
		if image.State == wire.StateActive {
			if err := s.estimate(ctx, image, &one); err != nil {
				return status, err
			}
		}
		status.Images = append(status.Images, one)
	}
	status.State = stateOf(images)
	return status, nil
}

// stateOf returns the state of a name with these images.
func stateOf(images []catalog.Image) string {
	count := map[string]int{}
	for _, image := range images {
		count[image.State]++
	}
	switch {
	case len(images) == 0:
		return wire.StatusUnknown
	case count[wire.StateFailed] > 0:
		return wire.StatusFailed
	case count[wire.StateQueued]+count[wire.StateActive] > 0:
		return wire.StatusWaiting
	case count[wire.StateReady] > 0:
		return wire.StatusReady
	}
	return wire.StatusStored
}

// maxEstimate bounds estimates, in seconds.
const maxEstimate = 24 * 60 * 60

// estimate adds the progress of an image that is being ingested. The time that it still takes is
// estimated from the time that it has taken until now.
func (s *Server) estimate(ctx context.Context, image catalog.Image, one *wire.ImageStatus) error {
	j, err := s.Catalog.Jobs.Open(ctx, s.ImageJobs, image.Name)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil // it has just ended
	}
	if err != nil {
		return err
	}
	described, err := s.describeJob(j)
	if err != nil {
		return err
	}
	for _, p := range described.Progress {
		one.Bytes, one.Total = one.Bytes+p.Bytes, one.Total+p.Total
	}
	now, err := s.Catalog.Now(ctx)
	if err != nil || one.Bytes <= 0 || one.Total <= one.Bytes {
		return err
	}
	left := now.Sub(image.Updated).Seconds() * float64(one.Total-one.Bytes) / float64(one.Bytes)
	one.Seconds = max(1, int64(min(left, maxEstimate)))
	return nil
}

// colors are the colors of badges by the state of a name.
var colors = map[string]string{wire.StatusReady: "#2e7d32", wire.StatusWaiting: "#9a6700", wire.StatusFailed: "#c62828"}

// sendBadge sends a state as an image. It has no text but the state, which the hub has chosen.
func sendBadge(w http.ResponseWriter, state string) {
	const label, glyph, margin = "lighter", 7, 6
	left, right := glyph*len(label)+2*margin, glyph*utf8.RuneCountInString(state)+2*margin
	color, ok := colors[state]
	if !ok {
		color = "#616161"
	}
	state = html.EscapeString(state)
	h := w.Header()
	h.Set("Content-Type", "image/svg+xml")
	h.Set("Cache-Control", uncached)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'")
	_, _ = fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="20" role="img" aria-label="%s: %s">`+
		`<title>%s: %s</title><rect width="%d" height="20" rx="3" fill="#444"/>`+
		`<path d="M%d 0h%da3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-%dz" fill="%s"/>`+
		`<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">`+
		`<text x="%d" y="14">%s</text><text x="%d" y="14">%s</text></g></svg>`+"\n",
		left+right, label, state, label, state, left+right, left, right-3, right-3, color,
		left/2, label, left+right/2, state) // an error means that the client has gone
}
