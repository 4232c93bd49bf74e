package hub

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
	var images []wire.Image
	var limit int64
	if name != "" {
		limit = maxAnswer // a node asks
	}
	err := c.getJSON(ctx, wire.ImagesPath(c.scope), byName(name), limit, &images)
	return images, err
}

// Inspect tells all that the hub knows of the images of one name.
func (c *Client) Inspect(ctx context.Context, name string) ([]wire.Inspection, error) {
	var found []wire.Inspection
	err := c.getJSON(ctx, wire.ImagesPath(c.scope)+"/inspect", byName(name), 0, &found)
	return found, err
}

// Remove takes an image away.
func (c *Client) Remove(ctx context.Context, name string) error {
	res, err := c.do(ctx, http.MethodDelete, wire.ImagesPath(c.scope), byName(name), nil)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// Add takes an image in and reports what goes on to each, until it can be run.
// What goes wrong on the hub is an error.
func (c *Client) Add(ctx context.Context, add wire.Add, each func(wire.Progress)) (wire.Progress, error) {
	body, err := json.Marshal(add)
	if err != nil {
		return wire.Progress{}, err
	}
	return c.progress(ctx, wire.ImagesPath(c.scope), nil, body, each)
}

// Verify reads an image's every byte back on the hub. Progress.Problems says
// what is wrong.
func (c *Client) Verify(ctx context.Context, name string, each func(wire.Progress)) (wire.Progress, error) {
	return c.progress(ctx, wire.ImagesPath(c.scope)+"/verify", byName(name), []byte("{}"), each)
}

func (c *Client) progress(ctx context.Context, path string, query url.Values, body []byte, each func(wire.Progress)) (wire.Progress, error) {
	res, err := c.do(ctx, http.MethodPost, path, query, body)
	if err != nil {
		return wire.Progress{}, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 16<<20) // the last line lists images and problems
	for lines.Scan() {
		var p wire.Progress
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return p, fmt.Errorf("hub %s: understand the progress: %w", c.URL(), err)
		}
		if !p.Done {
			each(p)
			continue
		}
		if p.Error != "" {
			return p, errors.New(p.Error)
		}
		return p, nil
	}
	if err := lines.Err(); err != nil {
		return wire.Progress{}, fmt.Errorf("hub %s: read the progress: %w", c.URL(), err)
	}
	return wire.Progress{}, fmt.Errorf("hub %s: the answer ends before the work is done; `lighter images` shows how it went on", c.URL())
}
