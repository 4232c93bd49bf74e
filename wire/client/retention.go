package client

import (
	"context"
	"net/http"
	"net/url"

	"lighter/wire"
)

// Retention returns what the retention rules say about each image now.
func (c *Client) Retention(ctx context.Context) ([]wire.Verdict, error) {
	return ask[[]wire.Verdict](ctx, c, request{method: http.MethodGet, path: wire.RetentionPath(c.Scope())}, 0)
}

// ApplyRetention applies the rules as soon as possible, and returns the job. Of the confirmed
// repositories any share of the images may be removed.
func (c *Client) ApplyRetention(ctx context.Context, confirmed []string) (wire.Job, error) {
	r := request{method: http.MethodPost, path: wire.RetentionPath(c.Scope()), query: url.Values{"confirm": confirmed},
		body: []byte("{}")}
	return ask[wire.Job](ctx, c, r, maxAnswer)
}
