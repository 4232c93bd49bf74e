package hub

import (
	"context"
	"errors"
	"net/http"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
)

// traceTimeout bounds the sending of a trace to one hub.
const traceTimeout = 10 * time.Second

// ErrNoHub says that none of the origins is a hub that can be asked.
var ErrNoHub = errors.New("there is no hub to tell")

// SendTrace tells what a start has read of a tree to the first origin that takes
// it: a hub that knows the tree. Mirrors take nothing, and origins that are down
// are not asked; what comes of it says nothing of them. The error is that of the
// last origin that was asked, or ErrNoHub. A hub that finds the trace invalid has
// spoken for all.
func (s *Origins) SendTrace(ctx context.Context, tree chunk.ID, t trace.Trace) error {
	body := t.Encode()
	err := ErrNoHub
	for _, o := range s.all {
		if !o.isUp() {
			continue
		}
		if err = o.client.sendTrace(ctx, tree, body); err == nil || ctx.Err() != nil {
			return err
		}
		var said *Error
		if errors.As(err, &said) && (said.Status == http.StatusBadRequest || said.Status == http.StatusRequestEntityTooLarge) {
			return err
		}
	}
	return err
}

func (c *Client) sendTrace(ctx context.Context, tree chunk.ID, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, traceTimeout)
	defer cancel()
	res, err := c.do(ctx, http.MethodPost, tracePath(c.scope, tree), nil, body)
	if err != nil {
		return err
	}
	return res.Body.Close()
}
