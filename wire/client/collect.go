package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"lighter/wire"
)

// Collect starts a collection, which frees what no image needs, unless one is running. It returns
// the job of the collection.
func (c *Client) Collect(ctx context.Context) (wire.Job, error) {
	return ask[wire.Job](ctx, c, c.collection(""), 0)
}

// AwaitCollection waits until the job of a collection has ended. It passes the progress to report.
// Progress.Collection of the result says what was freed.
func (c *Client) AwaitCollection(
	ctx context.Context, job int64, report func(wire.Progress),
) (wire.Progress, error) {
	r := c.collection("/await")
	r.query = url.Values{"job": {strconv.FormatInt(job, 10)}}
	return c.watch(ctx, r, report)
}

// PlanCollection returns what a collection would free. It changes nothing.
func (c *Client) PlanCollection(ctx context.Context) (wire.Progress, error) {
	return c.watch(ctx, c.collection("/plan"), func(wire.Progress) {})
}

func (c *Client) collection(action string) request {
	return request{method: http.MethodPost, path: wire.CollectPath(c.Domain()) + action, body: []byte("{}")}
}
