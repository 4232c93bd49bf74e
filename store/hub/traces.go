package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/wire"
)

// traceTimeout bounds the sending of a trace to one hub.
const traceTimeout = 10 * time.Second

// SendTrace tells what a start has read of a tree to the first origin that takes
// it: a hub that knows the tree. Mirrors take nothing, and origins that are down
// are not asked; what comes of it says nothing of them. The error is a refusal
// (Error.Refusal) only if all refuse. A hub that finds the trace invalid has spoken
// for all.
func (s *Origins) SendTrace(ctx context.Context, tree chunk.ID, t trace.Trace) error {
	body := t.Encode()
	var failed, refused error // the last of each
	for _, o := range s.all {
		if !o.isUp() {
			failed = o.leftAlone()
			continue
		}
		err := o.client.sendTrace(ctx, tree, body)
		var said *Error
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case !errors.As(err, &said) || !said.Refusal():
			failed = err
		case said.Status == http.StatusBadRequest || said.Status == http.StatusRequestEntityTooLarge:
			return err
		default:
			refused = err
		}
	}
	if failed != nil {
		return failed
	}
	return refused
}

func (c *Client) sendTrace(ctx context.Context, tree chunk.ID, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, traceTimeout)
	defer cancel()
	res, err := c.do(ctx, http.MethodPost, wire.TracePath(c.scope, tree), nil, body)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

func byPlatform(name, platform string) url.Values {
	query := byName(name)
	if platform != "" {
		query.Set("platform", platform)
	}
	return query
}

// Starts tells how the images start that a name stands for and that are ready; of
// one platform, if one is given.
func (c *Client) Starts(ctx context.Context, name, platform string) ([]wire.Starts, error) {
	var found []wire.Starts
	err := c.getJSON(ctx, wire.TracesPath(c.scope), byPlatform(name, platform), 0, &found)
	return found, err
}

// ExportTraces returns what the hub keeps of the starts of an image, as package
// trace encodes it as text. platform may be empty if the name stands for one image.
func (c *Client) ExportTraces(ctx context.Context, name, platform string) ([]byte, error) {
	res, err := c.do(ctx, http.MethodGet, wire.TracesPath(c.scope)+"/export", byPlatform(name, platform), nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, trace.MaxText+1))
	if err != nil {
		return nil, fmt.Errorf("hub %s: read the traces: %w", c.URL(), err)
	}
	return text, nil
}

// ImportTraces has the hub add such text to what it keeps of the starts of an
// image.
func (c *Client) ImportTraces(ctx context.Context, name, platform string, text []byte) error {
	res, err := c.do(ctx, http.MethodPost, wire.TracesPath(c.scope)+"/import", byPlatform(name, platform), text)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// ForgetTraces has the hub remove a workload, by its ID or what that begins with, from
// what it keeps of the starts of an image; all of it, if workload is empty.
func (c *Client) ForgetTraces(ctx context.Context, name, platform, workload string) (f wire.Forgotten, err error) {
	query := byPlatform(name, platform)
	if workload != "" {
		query.Set("workload", workload)
	}
	res, err := c.do(ctx, http.MethodDelete, wire.TracesPath(c.scope), query, nil)
	if err != nil {
		return f, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&f); err != nil {
		return f, fmt.Errorf("hub %s: understand the answer: %w", c.URL(), err)
	}
	return f, nil
}
