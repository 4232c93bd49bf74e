package repository

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slow gives a piece of bytes after each pause, without an end.
type slow struct {
	ctx   context.Context
	pause time.Duration
	piece int
}

func (s slow) Read(p []byte) (int, error) {
	select {
	case <-s.ctx.Done():
		return 0, context.Cause(s.ctx)
	case <-time.After(s.pause):
		return min(s.piece, len(p)), nil
	}
}

// A body may take as long as it needs, if it makes progress.
func TestProgress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pause  time.Duration
		piece  int
		stalls bool
	}{
		{stallTime - time.Second, minProgress, false}, {stallTime + time.Second, minProgress, true},
		{time.Second, minProgress / 10, false}, {time.Second, 1, true}, {time.Second, minProgress / 20, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, giveUp := context.WithCancelCause(t.Context())
			defer giveUp(nil)
			a := &answer{Response: &http.Response{Body: io.NopCloser(slow{ctx, c.pause, c.piece})}, url: &url.URL{}}
			const pieces = 100
			b := newBody(a, int64(pieces*c.piece)+1, stallTime, giveUp)
			_, err := io.CopyN(io.Discard, b, int64(pieces*c.piece))
			if isStall := err != nil && strings.Contains(err.Error(), "stalled"); isStall != c.stalls ||
				!c.stalls && err != nil {
				t.Errorf("%d bytes each %s: error %v, want a stall: %t", c.piece, c.pause, err, c.stalls)
			}
		})
	}
}
