package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/wire"
)

func byPlatform(name, platform string) url.Values {
	query := byName(name)
	if platform != "" {
		query.Set("platform", platform)
	}
	return query
}

// Starts returns what the hub knows about the starts of the images of one name. It leaves out
// images that are not ready and, if platform is not empty, images of other platforms.
func (c *Client) Starts(ctx context.Context, name, platform string) ([]wire.Starts, error) {
	r := request{method: http.MethodGet, path: wire.TracesPath(c.Domain()), query: byPlatform(name, platform)}
	return ask[[]wire.Starts](ctx, c, r, 0)
}

// SendTrace reports what a start has read of a tree.
func (c *Client) SendTrace(ctx context.Context, tree chunk.ID, t trace.Trace) error {
	return c.send(ctx, request{method: http.MethodPost, path: wire.TracePath(c.Domain(), tree), body: t.Encode()})
}

// ExportTraces returns the hub's recordings of the starts of an image, in the text form of
// package trace. platform may be empty if the name stands for one image.
func (c *Client) ExportTraces(ctx context.Context, name, platform string) ([]byte, error) {
	res, err := c.do(ctx, request{method: http.MethodGet, path: wire.TracesPath(c.Domain()) + "/export",
		query: byPlatform(name, platform)})
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, trace.MaxText+1))
	if err != nil {
		return nil, fmt.Errorf("hub %s: read the traces: %w", c.url, err)
	}
	if len(text) > trace.MaxText {
		return nil, fmt.Errorf("hub %s: the traces are longer than %d bytes", c.url, trace.MaxText)
	}
	return text, nil
}

// ImportTraces adds the recordings in text to the hub's recordings of the starts of an image. text
// has the form that ExportTraces returns.
func (c *Client) ImportTraces(ctx context.Context, name, platform string, text []byte) error {
	return c.send(ctx, request{method: http.MethodPost, path: wire.TracesPath(c.Domain()) + "/import",
		query: byPlatform(name, platform), body: text})
}

// ForgetTraces removes a workload from the hub's recordings of the starts of an image. The
// workload is named by its ID or a prefix of it; empty: all workloads.
func (c *Client) ForgetTraces(ctx context.Context, name, platform, workload string) (wire.Forgotten, error) {
	query := byPlatform(name, platform)
	if workload != "" {
		query.Set("workload", workload)
	}
	r := request{method: http.MethodDelete, path: wire.TracesPath(c.Domain()), query: query}
	return ask[wire.Forgotten](ctx, c, r, maxAnswer)
}
