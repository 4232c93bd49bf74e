package outage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lighter/hub/away"
)

var errAway = away.New("the bucket is not available")

// lockedBuffer is a bytes.Buffer that several goroutines use.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

func (b *lockedBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buffer.Reset()
}

// While a store is away, the log has a line when it goes, one a minute, and one when it is back,
// however many errors are logged.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuffer
		var failure atomic.Pointer[error]
		setFailure := func(err error) { failure.Store(&err) }
		setFailure(nil)
		w := New(slog.New(slog.NewTextHandler(&out, nil)),
			Store{"bucket", func(context.Context) error { return *failure.Load() }})
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		log := w.Logger().With("domain", "team")
		// fail logs an error each 100 ms.
		fail := func(duration time.Duration, err error) {
			for range duration / (100 * time.Millisecond) {
				log.Error("request failed", "err", fmt.Errorf("read: %w", err))
				time.Sleep(100 * time.Millisecond)
			}
		}
		want := func(when, message string, n int) {
			t.Helper()
			synctest.Wait() // until nobody writes to out
			if got := strings.Count(out.String(), message); got != n {
				t.Errorf("%s: %d lines %q, want %d:\n%s", when, got, message, n, out.String())
			}
		}
		time.Sleep(5 * time.Second)
		if s := w.States(); len(s) != 1 || s[0].Err != nil {
			t.Errorf("states %v, want a store that answers", s)
		}
		setFailure(errAway)
		fail(150*time.Second, errAway)
		want("away", "request failed", 1)
		want("away", "a store of the hub is away", 1)
		want("away", "still away", 2)
		if s := w.States()[0]; !errors.Is(s.Err, errAway) || time.Since(s.Since) < 145*time.Second {
			t.Errorf("state %v, want away since the beginning", s)
		}
		log.Error("another error", "err", errors.New("invalid"))
		want("away", "another error", 1)
		setFailure(nil)
		time.Sleep(5 * time.Second)
		want("back", "a store of the hub is back", 1)
		if s := w.States()[0]; s.Err != nil {
			t.Errorf("state %v, want a store that answers", s)
		}
		out.Reset()
		fail(time.Minute, errAway) // the store answers, and requests fail nevertheless
		if n := strings.Count(out.String(), "request failed"); n < 10 || n > 70 {
			t.Errorf("%d lines about errors of a store that answers, want about one a second:\n%s", n, out.String())
		}
		time.Sleep(remindEach + every)
		synctest.Wait()
		n := strings.Count(out.String(), "request failed")
		for _, count := range regexp.MustCompile(` lines=(\d+)`).FindAllStringSubmatch(out.String(), -1) {
			lines, err := strconv.Atoi(count[1])
			if err != nil {
				t.Fatal(err)
			}
			n += lines
		}
		if n != 600 {
			t.Errorf("%d lines were logged or counted, want all 600:\n%s", n, out.String())
		}
		want("an answering store", "some requests to them fail", 2)
		end()
		<-ended
	})
}

// At the level debug, the log has every line.
func TestDebug(t *testing.T) {
	var out bytes.Buffer
	w := New(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for range 3 {
		w.Logger().Error("request failed", "err", errAway)
	}
	if got := strings.Count(out.String(), "level=DEBUG"); got != 2 {
		t.Errorf("%d lines with the level debug, want 2:\n%s", got, out.String())
	}
}
