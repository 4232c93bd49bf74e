package repository

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/sleep"
	"lighter/store"
)

// breaking gives a blob, or the asked rest of it, and breaks the connection after some bytes.
func (f *fake) breaking(after int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, req *http.Request) {
		from := 0
		if _, err := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-", &from); err == nil {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(f.blob)-1, len(f.blob)))
			w.Header().Set("Content-Length", fmt.Sprint(len(f.blob)-from))
			w.WriteHeader(http.StatusPartialContent)
		} else {
			w.Header().Set("Content-Length", fmt.Sprint(len(f.blob)))
		}
		_, _ = w.Write(f.blob[from:min(from+after, len(f.blob))])
	}
}

// wholeOf reads a whole blob.
func wholeOf(t *testing.T, f *fake, r *Repository) (b []byte, err error) {
	t.Helper()
	err = r.Whole(t.Context(), f.d, func(a store.Answer) (err error) {
		b, err = io.ReadAll(a.Body)
		return err
	})
	return b, err
}

// A whole blob is read further after its connection has broken, as long as bytes arrive. The bytes
// are verified together.
func TestWholeGoesOn(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := f.open(t)
	r.pauses = sleep.Backoff{First: time.Microsecond, Most: time.Microsecond}
	f.give = f.breaking(20_000)
	if b, err := wholeOf(t, f, r); err != nil || !bytes.Equal(b, f.blob) {
		t.Errorf("got %d bytes, %v", len(b), err)
	}
	if asked, given := f.counts(); given != 15 || asked != 15 {
		t.Errorf("%d and %d requests, want 15", asked, given)
	}
	f.with(func() { f.give = f.breaking(10) })
	if b, err := wholeOf(t, f, r); !errors.Is(err, io.ErrUnexpectedEOF) || len(b) != 10*maxTries {
		t.Errorf("few bytes at a time: %d bytes, %v, want %d", len(b), err, 10*maxTries)
	}
	f.with(func() {
		first := f.breaking(20_000)
		f.give = func(w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("Range") == "" {
				first(w, req)
				return
			}
			_, _ = w.Write(f.blob) // it ignores ranges
		}
	})
	f.counts()
	if b, err := wholeOf(t, f, r); !errors.Is(err, ErrNoRanges) || len(b) != 20_000 {
		t.Errorf("no ranges: %d bytes, %v, want %v", len(b), err, ErrNoRanges)
	}
	if _, given := f.counts(); given != 2 {
		t.Errorf("no ranges: %d requests, want 2", given)
	}
	changed := bytes.Clone(f.blob)
	changed[len(changed)-1]++
	was := f.blob
	f.with(func() { f.blob, f.give = changed, f.breaking(200_000) })
	if b, err := wholeOf(t, f, r); !errors.As(err, new(*chunk.InvalidError)) || len(b) != len(was) ||
		!strings.Contains(err.Error(), "its digest is") {
		t.Errorf("other bytes: got %d bytes, %v, want an InvalidError", len(b), err)
	}
}

// A whole blob waits for a short pause. A longer pause is an error that says when it ends.
func TestWholeAfterAPause(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := f.open(t)
	r.pauses = sleep.Backoff{First: time.Microsecond, Most: time.Microsecond}
	first := f.breaking(20_000)
	var pause atomic.Int64
	pause.Store(1)
	f.give = func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Range") == "" {
			first(w, req)
		} else if seconds := pause.Swap(0); seconds > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(seconds))
			w.WriteHeader(http.StatusTooManyRequests)
		} else {
			f.serveBlob(w, req)
		}
	}
	if b, err := wholeOf(t, f, r); err != nil || !bytes.Equal(b, f.blob) {
		t.Errorf("after a pause: got %d bytes, %v", len(b), err)
	}
	pause.Store(100)
	b, err := wholeOf(t, f, r)
	var busy store.Unavailable
	if !errors.As(err, &busy) || busy.RetryAfter() < longestPause || len(b) != 20_000 {
		t.Errorf("got %d bytes, %v, want an error that says when", len(b), err)
	}
}
