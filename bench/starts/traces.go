package starts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lighter/bench"
	"lighter/store/hub"
	"lighter/test/testkit/site"
)

// How long a node may take to report a start, and a hub to make its startup packs
// of what it was told, and to press them; and how long these stay as they are then.
const (
	reportLimit = 3 * time.Minute
	layoutLimit = 5 * time.Minute
	layoutStays = 6 * time.Second
	traceAgain  = 200 * time.Millisecond
)

// traceFile is what stands for the traces of an image where a peer's form is made.
const traceFile = "{trace}"

// needsTraces tells whether somebody starts with traces.
func (p plan) needsTraces() bool {
	return p.needs(Lighter) || p.needs(LighterLocal) || slices.ContainsFunc(p.Peers, func(peer bench.Peer) bool {
		return p.needs(peer.Name) && strings.Contains(strings.Join(peer.Convert, " "), traceFile)
	})
}

// record starts each of an image's workloads as often as traces are wanted, also
// those that are not to be measured, so that parts can be merged; each time on a
// machine that has nothing. Then it waits until the hub has made its startup packs
// of them. If nobody needs them, it does nothing.
func (r *run) record(ctx context.Context, image string) error {
	if r.traced == nil {
		return nil
	}
	begin := time.Now()
	r.Site.SetPeer(nil)
	r.Site.UseHub(r.traced)
	r.Site.SetNodeArgs()
	var reported int64
	for _, w := range r.Workloads() {
		for range r.Recorded {
			if w.Image != image {
				continue
			}
			n, err := r.recordOne(ctx, w)
			if err != nil {
				return fmt.Errorf("record a start of %s: %w", w, err)
			}
			reported += n
		}
	}
	packs, err := r.awaitLayout(ctx, r.traced, image, reported)
	if err != nil {
		return err
	}
	bench.Say("%-10s %d starts recorded in %s: %s", image, reported, bench.Seconds(time.Since(begin).Seconds()), packs)
	return r.exportTraces(ctx, image)
}

// recordOne starts a workload once, and returns how many traces the node has
// reported of it: none if it has read hardly anything.
func (r *run) recordOne(ctx context.Context, w bench.Workload) (reported int64, err error) {
	m, ref := r.Site.Machine, site.Reference(w.Image)
	if err := r.Wipe(ctx); err != nil {
		return 0, err
	}
	if _, err := m.Pull(ctx, site.Lighter, ref); err != nil {
		return 0, err
	}
	if _, err := m.RunUntil(ctx, w.Ready, site.Lighter, ref, w.Argv...); err != nil {
		return 0, err
	}
	for end := time.Now().Add(reportLimit); ; {
		var status struct {
			Recording struct{ Reported, Skipped, Dropped int64 }
		}
		if err := m.NodeStatus(ctx, &status); err != nil {
			return 0, err
		}
		switch is := status.Recording; {
		case is.Reported > 0 || is.Skipped > 0:
			return is.Reported, nil
		case is.Dropped > 0:
			return 0, errors.New("the node could not report it to the hub")
		case time.Now().After(end):
			return 0, fmt.Errorf("the node has not reported it after %s", reportLimit)
		}
		if err := pause(ctx); err != nil {
			return 0, err
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(traceAgain):
		return nil
	}
}

// awaitLayout waits until a hub has made an image's startup packs of so many
// starts, or of its own guess, and says what they are. There may be no guess.
func (r *run) awaitLayout(ctx context.Context, h *site.Hub, image string, starts int64) (packs string, err error) {
	var last string
	var since time.Time
	for end := time.Now().Add(layoutLimit); ; {
		known, err := r.startsOf(ctx, h, image)
		if err != nil {
			return "", err
		}
		var seen int64
		for _, w := range known.Workloads {
			seen += w.Starts
		}
		if now := describe(known); now != last {
			last, since = now, time.Now()
		}
		switch {
		case seen >= starts && !known.Pending && time.Since(since) >= layoutStays:
			return last, nil
		case time.Now().After(end):
			return "", fmt.Errorf("after %s the hub has made use of %d of %d recorded starts of %s (its packs are still to change: %v)", layoutLimit, seen, starts, image, known.Pending)
		}
		if err := pause(ctx); err != nil {
			return "", err
		}
	}
}

// describe says what a hub knows of an image's starts.
func describe(s hub.Starts) string {
	var bytes, first int64
	for _, p := range s.Packs {
		bytes += p.Bytes
		if p.AtMount {
			first += p.Bytes
		}
	}
	return fmt.Sprintf("%d workloads, %d startup packs of %s, %s of it at each start", len(s.Workloads), len(s.Packs), bench.Size(bytes), bench.Size(first))
}

func (r *run) startsOf(ctx context.Context, h *site.Hub, image string) (s hub.Starts, err error) {
	out, err := h.Lighter(ctx, "trace show", "--json", image+":latest")
	if err != nil {
		return s, err
	}
	var all []hub.Starts
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return s, err
	}
	if len(all) != 1 {
		return s, fmt.Errorf("the hub has %d images %s, not one", len(all), image)
	}
	return all[0], nil
}

// tracesOf is the file of an image's traces.
func (r *run) tracesOf(image string) string { return filepath.Join(r.Site.Dir, image+".trace") }

// exportTraces writes down what the hub knows of an image's starts.
func (r *run) exportTraces(ctx context.Context, image string) error {
	text, err := r.traced.Lighter(ctx, "trace export", image+":latest")
	if err != nil {
		return err
	}
	return os.WriteFile(r.tracesOf(image), []byte(text), 0o644)
}
