package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"lighter/wire"
)

// Events returns the hub's latest events, and the deliveries that are to be made; with dead, the
// dead deliveries.
func (c *Client) Events(ctx context.Context, dead bool) (wire.EventLog, error) {
	r := request{method: http.MethodGet, path: wire.EventsPath(c.Domain())}
	if dead {
		r.query = url.Values{"dead": {"1"}}
	}
	return ask[wire.EventLog](ctx, c, r, 0)
}

// RetryEvents makes dead deliveries again: those of the event with an ID, or all if it is empty.
func (c *Client) RetryEvents(ctx context.Context, id string) (wire.Retried, error) {
	r := request{method: http.MethodPost, path: wire.EventsPath(c.Domain()) + "/retry", body: []byte("{}")}
	if id != "" {
		r.query = url.Values{"event": {id}}
	}
	return ask[wire.Retried](ctx, c, r, 0)
}

// WatchImages calls each for every image of a name, or for all images if it is empty, and then for
// each change. It returns when each fails, ctx ends or the hub ends the answer.
func (c *Client) WatchImages(ctx context.Context, name string, each func(wire.Event) error) error {
	r := request{method: http.MethodGet, path: wire.ImagesPath(c.Domain()) + "/watch", query: byName(name)}
	res, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e wire.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("hub %s: decode an event: %w", c.url, err)
		}
		if e.Kind == wire.EventWait {
			continue
		}
		if err := each(e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("hub %s: read the events: %w", c.url, err)
	}
	return fmt.Errorf("hub %s: it has ended the list: run the command again", c.url)
}
