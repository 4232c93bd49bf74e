package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"lighter/wire"
)

// Jobs lists the hub's jobs that have not ended: running ones first, then queued and paused ones.
// With ended, it lists ended jobs, the latest first.
func (c *Client) Jobs(ctx context.Context, ended bool) ([]wire.Job, error) {
	r := request{method: http.MethodGet, path: wire.JobsPath(c.Domain())}
	if ended {
		r.query = url.Values{"ended": {"1"}}
	}
	return ask[[]wire.Job](ctx, c, r, 0)
}

// CancelJob ends a job, also while it runs.
func (c *Client) CancelJob(ctx context.Context, n int64) (wire.Job, error) {
	return c.job(ctx, "cancel", n)
}

// PauseJob stops a job until RetryJob.
func (c *Client) PauseJob(ctx context.Context, n int64) (wire.Job, error) {
	return c.job(ctx, "pause", n)
}

// RetryJob lets a job run as soon as possible. The job may be waiting, paused, failed or cancelled.
func (c *Client) RetryJob(ctx context.Context, n int64) (wire.Job, error) {
	return c.job(ctx, "retry", n)
}

func (c *Client) job(ctx context.Context, action string, n int64) (wire.Job, error) {
	return ask[wire.Job](ctx, c, request{method: http.MethodPost, path: wire.JobsPath(c.Domain()) + "/" + action,
		query: url.Values{"job": {strconv.FormatInt(n, 10)}}, body: []byte("{}")}, 0)
}
