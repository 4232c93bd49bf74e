package uploads

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// fakeRegistry accepts all uploads. ending is called when a blob has arrived, before it is
// accepted.
type fakeRegistry struct {
	size   int64
	ending func()
}

func (f *fakeRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	n, _ := io.Copy(io.Discard, req.Body)
	f.size += n
	if req.Method == http.MethodPatch {
		w.Header().Set("Range", fmt.Sprintf("0-%d", f.size-1))
		w.WriteHeader(http.StatusAccepted)
		return
	}
	f.ending()
	w.WriteHeader(http.StatusCreated)
}

func newSplitter(t *testing.T, room func() error) *Splitter {
	s := New(t.Context(), Config{Dir: t.TempDir(), Room: room, Bounds: NewBounds(), Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func hasRoom() error { return nil }

// send sends a request of an upload.
func send(t *testing.T, h http.Handler, method, path string, body []byte) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(body)))
	if w.Code >= 300 {
		t.Fatalf("%s %s: %d", method, path, w.Code)
	}
}

// wantFree fails the test unless no upload takes anything any more.
func wantFree(t *testing.T, s *Splitter) {
	t.Helper()
	b := s.config.Bounds
	if !b.uploads.TryAcquire(maxUploads) || !b.bytes.TryAcquire(maxBytes) || !b.splits.free.TryAcquire(1) {
		t.Error("an upload that has ended still counts")
	}
	if len(s.uploads)+len(s.ending) > 0 {
		t.Errorf("%d uploads and %d digests are remembered", len(s.uploads), len(s.ending))
	}
}

// An image that needs a layer waits while the layer is split, once the last bytes of its blob have
// been sent.
func TestWait(t *testing.T) {
	s := newSplitter(t, hasRoom)
	waited := make(chan struct{})
	r := &fakeRegistry{ending: func() {
		if !s.Splits("sha256:a") || s.Splits("sha256:b") {
			t.Error("the blob that ends is not the one that is being split")
		}
		go func() {
			defer close(waited)
			s.Wait(t.Context(), "sha256:a", func(int) {})
		}()
	}}
	h := s.Handler(r)
	send(t, h, "PATCH", "/v2/a/blobs/uploads/1", []byte("some bytes"))
	send(t, h, "PUT", "/v2/a/blobs/uploads/1?digest=sha256:a", []byte("more"))
	<-waited
	wantFree(t, s)
}

// An upload is dropped if the registry has not as many bytes as were copied, if there is no room,
// or if it is one too many. It is passed to the registry all the same.
func TestDropped(t *testing.T) {
	for name, spoil := range map[string]func(s *Splitter, r *fakeRegistry, room *error){
		"the registry had some bytes before": func(_ *Splitter, r *fakeRegistry, _ *error) { r.size = 3 },
		"no room at the beginning": func(_ *Splitter, _ *fakeRegistry, room *error) {
			*room = errors.New("full")
		},
		"too many uploads": func(s *Splitter, _ *fakeRegistry, _ *error) {
			s.config.Bounds.uploads.TryAcquire(maxUploads)
		},
		"too many bytes": func(s *Splitter, _ *fakeRegistry, _ *error) {
			s.config.Bounds.bytes.TryAcquire(maxBytes)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var room error
			s := newSplitter(t, func() error { return room })
			r := &fakeRegistry{ending: func() {}}
			spoil(s, r, &room)
			before := r.size
			h := s.Handler(r)
			send(t, h, "PATCH", "/v2/a/blobs/uploads/1", []byte("some bytes"))
			for _, u := range s.uploads {
				if u.err == nil {
					t.Error("the upload was not dropped")
				}
			}
			send(t, h, "PUT", "/v2/a/blobs/uploads/1?digest=sha256:a", []byte("more"))
			if r.size != before+14 || s.Splits("sha256:a") {
				t.Errorf("the registry got %d bytes, want 14; the blob is being split: %t", r.size-before,
					s.Splits("sha256:a"))
			}
		})
	}
}

// An upload without requests leaves its place to another one that waits. It keeps the place as long
// as a request is in progress, or bytes are left to be split.
func TestStalledUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSplitter(t, hasRoom)
		first, err := s.newUpload()
		if err != nil {
			t.Fatal(err)
		}
		first.begun = true
		why := func() error {
			first.mu.Lock()
			defer first.mu.Unlock()
			return first.err
		}
		p := newPlaces(1)
		if err := p.take(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		taken := make(chan error, 1)
		go func() { taken <- p.take(t.Context(), &upload{}) }()
		end := first.request()
		first.write([]byte("some bytes"))
		first.read.Store(first.size())
		time.Sleep(2 * stallTime) // the registry does not answer
		end()
		time.Sleep(stallTime / 2)
		end = first.request()
		first.write([]byte("more"))
		end()
		time.Sleep(2 * stallTime)
		if err := why(); err != nil {
			t.Errorf("an upload that is busy was dropped: %v", err)
		}
		first.read.Store(first.size())
		time.Sleep(2 * stallTime)
		if err := why(); !errors.Is(err, errStalled) {
			t.Errorf("the stalled upload was dropped for: %v", err)
		}
		p.leave(first)
		if err := <-taken; err != nil {
			t.Error(err)
		}
	})
}

// Other requests are passed on as they are.
func TestOtherRequests(t *testing.T) {
	s := newSplitter(t, hasRoom)
	h := s.Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if _, isCopied := req.Body.(*copied); isCopied {
			t.Errorf("%s %s is copied", req.Method, req.URL.Path)
		}
	}))
	for _, request := range []string{"GET /v2/", "PUT /v2/a/manifests/1", "POST /v2/a/blobs/uploads/",
		"DELETE /v2/a/blobs/uploads/1", "GET /v2/a/blobs/uploads/1"} {
		method, path, _ := strings.Cut(request, " ")
		send(t, h, method, path, []byte("some bytes"))
	}
	wantFree(t, s)
}
