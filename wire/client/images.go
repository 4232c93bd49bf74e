package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"lighter/wire"
)

func byName(name string) url.Values {
	if name == "" {
		return nil
	}
	return url.Values{"name": {name}}
}

// Images lists the hub's images, or those of one name.
func (c *Client) Images(ctx context.Context, name string) ([]wire.Image, error) {
	var limit int64
	if name != "" { // a node asks so for one name, and bounds the answer
		limit = maxAnswer
	}
	r := request{method: http.MethodGet, path: wire.ImagesPath(c.Domain()), query: byName(name)}
	return ask[[]wire.Image](ctx, c, r, limit)
}

// AllImages lists the hub's images for a node, which bounds the answer: to limit bytes.
func (c *Client) AllImages(ctx context.Context, limit int64) ([]wire.Image, error) {
	return ask[[]wire.Image](ctx, c, request{method: http.MethodGet, path: wire.ImagesPath(c.Domain())}, limit)
}

// Inspect returns all that the hub knows of the images of one name.
func (c *Client) Inspect(ctx context.Context, name string) ([]wire.Inspection, error) {
	r := request{method: http.MethodGet, path: wire.ImagesPath(c.Domain()) + "/inspect", query: byName(name)}
	return ask[[]wire.Inspection](ctx, c, r, 0)
}

// Remove removes the images of one name. The hub refuses that if a list or hook wants the name.
func (c *Client) Remove(ctx context.Context, name string) error {
	return c.send(ctx, request{method: http.MethodDelete, path: wire.ImagesPath(c.Domain()), query: byName(name)})
}

// RemoveAnyway removes the images of one name, even if a list or hook wants it.
func (c *Client) RemoveAnyway(ctx context.Context, name string) error {
	query := url.Values{"name": {name}, "force": {"1"}}
	return c.send(ctx, request{method: http.MethodDelete, path: wire.ImagesPath(c.Domain()), query: query})
}

// Add adds an image to the hub and returns when it is ready. It passes the progress to
// report. A failure on the hub is an error.
func (c *Client) Add(ctx context.Context, add wire.Add, report func(wire.Progress)) (wire.Progress, error) {
	body, err := json.Marshal(add)
	if err != nil {
		return wire.Progress{}, err
	}
	return c.watch(ctx, request{method: http.MethodPost, path: wire.ImagesPath(c.Domain()), body: body}, report)
}

// Verify makes the hub read back every byte of an image. Progress.Problems of the result lists what
// is wrong.
func (c *Client) Verify(ctx context.Context, name string, report func(wire.Progress)) (wire.Progress, error) {
	return c.watch(ctx, request{method: http.MethodPost, path: wire.ImagesPath(c.Domain()) + "/verify",
		query: byName(name), body: []byte("{}")}, report)
}

// Fsck makes the hub compare its stores. Progress.Check of the result lists the problems.
func (c *Client) Fsck(ctx context.Context, w wire.Fsck, report func(wire.Progress)) (wire.Progress, error) {
	body, err := json.Marshal(w)
	if err != nil {
		return wire.Progress{}, err
	}
	return c.watch(ctx, request{method: http.MethodPost, path: wire.FsckPath(c.Domain()), body: body}, report)
}

// seeJobs ends the error about an answer that has ended before its operation.
const seeJobs = "`lighter jobs` shows whether the hub goes on with it"

// failure returns the error of an operation's last line.
func failure(last wire.Progress) error {
	if last.Status == 0 {
		return errors.New(last.Error)
	}
	return &Error{Status: last.Status, Message: last.Error, Missing: last.Status == http.StatusNotFound}
}

// watch starts an operation on the hub and follows it to its end.
func (c *Client) watch(ctx context.Context, r request, report func(wire.Progress)) (wire.Progress, error) {
	res, err := c.do(ctx, r)
	if err != nil {
		return wire.Progress{}, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var p wire.Progress
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return p, fmt.Errorf("hub %s: decode the progress: %w", c.url, err)
		}
		switch {
		case !p.Done:
			report(p)
		case p.Error != "":
			return p, failure(p)
		default:
			return p, nil
		}
	}
	if err := lines.Err(); err != nil {
		return wire.Progress{}, fmt.Errorf("hub %s: read the progress: %w; %s", c.url, err, seeJobs)
	}
	return wire.Progress{}, fmt.Errorf("hub %s: the answer ended before the operation; %s", c.url, seeJobs)
}
