package repository

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/registries"
	"lighter/store"
)

// A body that breaks off is a failure of the network, not a wrong answer. The registry says where
// the blob is next.
func TestBrokenConnection(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := f.open(t)
	if _, err := rangeOf(t, r, f.d, 10, 10); err != nil {
		t.Fatal(err)
	}
	f.with(func() {
		f.give = send(206, map[string]string{"Content-Range": "bytes 10-19/300000", "Content-Length": "10"}, "01234")
	})
	f.counts()
	_, err := rangeOf(t, r, f.d, 10, 10)
	if asked, given := f.counts(); asked != 0 || given != 1 {
		t.Errorf("%d and %d requests, want 0 and 1", asked, given)
	}
	next := func(what string) {
		t.Helper()
		f.with(func() { f.give = f.serveBlob })
		f.counts()
		if _, err := rangeOf(t, r, f.d, 10, 10); err != nil {
			t.Errorf("after %s: %v", what, err)
		}
		if asked, _ := f.counts(); asked != 1 {
			t.Errorf("after %s: %d requests to the registry, want 1", what, asked)
		}
	}
	next("a body that breaks off")
	f.with(func() { f.give = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) } })
	if _, err := rangeOf(t, r, f.d, 10, 10); err == nil || !strings.Contains(err.Error(), f.stores.URL+"/stored") {
		t.Errorf("no answer: error %v, want one with the URL", err)
	}
	next("no answer")
	if !errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(*chunk.InvalidError)) ||
		!strings.Contains(err.Error(), "after 5 of 10 bytes") {
		t.Errorf("error %v, want %v after 5 bytes", err, io.ErrUnexpectedEOF)
	}
}

// A body that stalls ends, and so does one whose reader is gone. A slow reader is no stall.
func TestStall(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	hang := make(chan struct{})
	release := sync.OnceFunc(func() { close(hang) })
	defer release()
	f.give = func(w http.ResponseWriter, req *http.Request) {
		send(206, map[string]string{"Content-Range": "bytes 0-9999/300000"}, string(f.blob[:5000]))(w, req)
		w.(http.Flusher).Flush()
		<-hang
	}
	r := f.open(t)
	why := errors.New("the container has ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := r.Range(ctx, f.d, 0, 10_000, func(a store.Answer) error {
		cancel(why)
		_, err := io.ReadAll(a.Body)
		return err
	})
	if !errors.Is(err, why) {
		t.Errorf("error %v, want %v", err, why)
	}
	r.stall = 20 * time.Millisecond
	if _, err := rangeOf(t, r, f.d, 0, 10_000); err == nil || !strings.Contains(err.Error(), "stalled") ||
		!strings.Contains(err.Error(), f.stores.URL) {
		t.Errorf("error %v, want one about the stall", err)
	}
	release()
	f.with(func() { f.give = f.serveBlob })
	err = r.Range(t.Context(), f.d, 0, f.d.Size, func(a store.Answer) error {
		time.Sleep(5 * r.stall)
		r.stall = stallTime
		_, err := io.ReadAll(a.Body)
		return err
	})
	if err != nil {
		t.Errorf("a slow reader: %v", err)
	}
}

// A host that asks for a pause is unavailable until then, and gets no requests.
func TestPause(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		for _, isTarget := range []bool{false, true} {
			f := startFake(t)
			r := f.open(t)
			pause := send(status, map[string]string{"Retry-After": "100"}, "")
			if isTarget {
				f.give = pause
			} else {
				f.answer = func(w http.ResponseWriter, req *http.Request) bool { pause(w, req); return true }
			}
			for range 3 {
				_, err := rangeOf(t, r, f.d, 0, 1)
				var busy store.Unavailable
				if !errors.As(err, &busy) || busy.RetryAfter() > 100*time.Second || busy.RetryAfter() < 10*time.Second {
					t.Errorf("%d, target %t: error %v, want one that says when", status, isTarget, err)
				}
			}
			if asked, given := f.counts(); !isTarget && asked != 1 || isTarget && given != 1 {
				t.Errorf("%d, target %t: %d and %d requests", status, isTarget, asked, given)
			}
		}
	}
}

// If bytes of a remembered target are wrong, take gets those that the registry leads to now. Wrong
// bytes that have just been asked for are an error at once, and an error of take itself stays what
// it is.
func TestChangedBlob(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := f.open(t)
	if _, err := rangeOf(t, r, f.d, 0, 10); err != nil {
		t.Fatal(err)
	}
	wrong := &chunk.InvalidError{What: "chunk", Err: errors.New("its digest is another")}
	read := func(errs ...error) (calls int, err error) {
		err = r.Range(t.Context(), f.d, 0, 10, func(a store.Answer) error {
			calls++
			if _, err := io.ReadAll(a.Body); err != nil {
				return err
			}
			return errs[min(calls, len(errs))-1]
		})
		return calls, err
	}
	f.counts()
	if calls, err := read(wrong, nil); calls != 2 || err != nil {
		t.Errorf("%d calls, %v, want 2", calls, err)
	}
	if asked, given := f.counts(); asked != 1 || given != 2 {
		t.Errorf("%d and %d requests, want 1 and 2", asked, given)
	}
	if calls, err := read(wrong); calls != 2 || !errors.Is(err, wrong) || !strings.Contains(err.Error(), "/stored") {
		t.Errorf("%d calls, %v, want 2", calls, err)
	}
	if calls, err := read(wrong); calls != 1 || !errors.Is(err, wrong) {
		t.Errorf("%d calls, %v, want 1", calls, err)
	}
	own := errors.New("no space left on device")
	if calls, err := read(own); calls != 1 || err != own {
		t.Errorf("%d calls, %v, want 1 and take's own error", calls, err)
	}
	f.counts()
	if _, err := read(nil); err != nil {
		t.Error(err)
	}
	if asked, _ := f.counts(); asked != 0 {
		t.Errorf("after an error of take: %d requests to the registry, want 0", asked)
	}
	f.with(func() {
		f.give = func(w http.ResponseWriter, req *http.Request) {
			http.ServeContent(w, req, "", epoch, strings.NewReader("another blob, longer than what is asked for"))
		}
	})
	if _, err := rangeOf(t, r, f.d, 0, 10); !errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("a blob of another size: error %v, want an InvalidError", err)
	}
	f.with(func() {
		f.give = func(w http.ResponseWriter, req *http.Request) { _, _ = w.Write(make([]byte, f.d.Size)) }
	})
	if _, err := r.Blob(t.Context(), f.d, f.d.Size); !errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("a whole blob with another digest: error %v, want an InvalidError", err)
	}
}

// A missing blob, and one that may not be read, are told apart. A token that was revoked is
// replaced, weeks later, too.
func TestRefusals(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := f.open(t)
	other := v1.Descriptor{Digest: f.d.Digest.Algorithm().FromString("other"), Size: 10}
	if _, err := rangeOf(t, r, other, 0, 1); !errors.Is(err, chunk.ErrNotFound) ||
		!strings.Contains(err.Error(), other.Digest.String()) || !strings.Contains(err.Error(), f.URL) {
		t.Errorf("a missing blob: error %v, want %v", err, chunk.ErrNotFound)
	}
	f.with(func() { clear(f.valid) })
	if _, err := rangeOf(t, r, f.d, 0, 1); err != nil || f.issued != 2 {
		t.Errorf("after the token was revoked: %v, %d tokens, want 2", err, f.issued)
	}
	f.with(func() { f.give = http.NotFound })
	f.counts()
	if _, err := rangeOf(t, r, f.d, 0, 1); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("a blob that its target does not have: error %v, want %v", err, chunk.ErrNotFound)
	}
	if asked, given := f.counts(); asked != 1 || given != 2 {
		t.Errorf("a blob that its target has lost: %d and %d requests, want 1 and 2", asked, given)
	}
	for what, table := range map[string]registries.Registry{
		"no login": {}, "a wrong one": {Logins: loginFile(t, f.host, "node", "wr0ng")}} {
		if _, err := rangeOf(t, openAt(t, f.host, table), f.d, 0, 1); !errors.Is(err, ErrDenied) ||
			strings.Contains(err.Error(), "wr0ng") {
			t.Errorf("%s: error %v, want %v", what, err, ErrDenied)
		}
	}
	bad := v1.Descriptor{Digest: "sha256:../../x", Size: 10}
	if _, err := rangeOf(t, r, bad, 0, 1); !errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("a digest that is none: error %v", err)
	}
}

// No more ranges are read at a time than the registry's table allows.
func TestConnections(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	var now, most atomic.Int64
	f.give = func(w http.ResponseWriter, req *http.Request) {
		for n := now.Add(1); n > most.Load(); {
			most.Store(n)
		}
		time.Sleep(5 * time.Millisecond)
		now.Add(-1)
		f.serveBlob(w, req)
	}
	r := openAt(t, f.host, registries.Registry{Connections: 2, Logins: loginFile(t, f.host, "node", password)})
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			if _, err := rangeOf(t, r, f.d, int64(i), 1); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if most.Load() > 2 {
		t.Errorf("%d ranges were read at a time, want 2 at most", most.Load())
	}
}
