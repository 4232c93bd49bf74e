package client

import (
	"context"
	"net/http"
	"net/url"

	"lighter/wire"
)

// Retention returns what the retention rules say about each image now.
func (c *Client) Retention(ctx context.Context) ([]wire.Verdict, error) {
	return ask[[]wire.Verdict](ctx, c, request{method: http.MethodGet, path: wire.RetentionPath(c.Domain())}, 0)
}

// ApplyRetention makes the hub apply the rules as soon as possible, and returns the job. The job
// may remove any share of the images of the confirmed repositories.
func (c *Client) ApplyRetention(ctx context.Context, confirmed []string) (wire.Job, error) {
	r := request{method: http.MethodPost, path: wire.RetentionPath(c.Domain()), query: url.Values{"confirm": confirmed},
		body: []byte("{}")}
	return ask[wire.Job](ctx, c, r, maxAnswer)
}
