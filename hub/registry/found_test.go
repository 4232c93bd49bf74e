package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// waiting counts all calls of Touch, and those that have not returned yet. A call returns when
// released is closed.
type waiting struct {
	Uses
	calls, now atomic.Int64
	released   chan struct{}
}

func (w *waiting) Touch(context.Context, []string, time.Duration) error {
	w.calls.Add(1)
	w.now.Add(1)
	defer w.now.Add(-1)
	<-w.released
	return nil
}

// putIndex stores an index of some manifests, and returns its digest.
func putIndex(t *testing.T, r *Registry, seed string, manifests int) string {
	t.Helper()
	layer := put(t, r, "a", []byte("layer"))
	index := v1.Index{MediaType: v1.MediaTypeImageIndex}
	index.SchemaVersion = 2
	for i := range manifests {
		m := manifestOf(t, put(t, r, "a", fmt.Appendf(nil, `{"os": "%s-%d"}`, seed, i)), layer)
		if err := r.Repository("a").PutManifest(t.Context(), "", m); err != nil {
			t.Fatal(err)
		}
		index.Manifests = append(index.Manifests, v1.Descriptor{MediaType: m.MediaType,
			Digest: digest.Digest(m.Digest), Size: int64(len(m.Bytes))})
	}
	b, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	m := Manifest{MediaType: index.MediaType, Digest: digest.FromBytes(b).String(), Bytes: b}
	if err := r.Repository("a").PutManifest(t.Context(), "", m); err != nil {
		t.Fatal(err)
	}
	return m.Digest
}

// What an index names is touched once in an interval, however often clients look for the index. A
// process touches the contents of a few indexes at a time.
func TestIndexesThatAreFound(t *testing.T) {
	uses := &waiting{released: make(chan struct{})}
	close(uses.released)
	r, err := Open(t.Context(), Dir(t.TempDir()), nil, uses, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	const indexes = 3 * foundAtOnce
	var paths []string
	for i := range indexes {
		paths = append(paths, "/v2/a/manifests/"+putIndex(t, r, fmt.Sprint(i), 2*touchedAtOnce))
	}
	handler := r.Handler(&events{})
	look := func(path string) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodHead, path, nil)
		req.Header.Set("Accept", v1.MediaTypeImageIndex)
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, req); w.Code != http.StatusOK {
			t.Errorf("HEAD %s: %d, want 200", path, w.Code)
		}
	}
	uses.calls.Store(0)
	look(paths[0])
	once := uses.calls.Load()
	for range 10 {
		look(paths[0])
	}
	if n := uses.calls.Load(); once == 0 || n != once {
		t.Errorf("touched %d times for one request and %d times for eleven, want as often, and not 0", once, n)
	}
	r.TouchInterval = 0
	look(paths[0])
	if n := uses.calls.Load(); n != 2*once {
		t.Errorf("touched %d times after the interval, want %d", n-once, once)
	}
	r.TouchInterval = time.Minute

	uses.released = make(chan struct{})
	var all sync.WaitGroup
	for _, path := range paths[1:] {
		all.Go(func() { look(path) })
	}
	for end := time.Now().Add(time.Minute); uses.now.Load() < foundAtOnce && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond) // in which further ones could begin
	if n := uses.now.Load(); n != foundAtOnce {
		t.Errorf("%d indexes are touched at a time, want %d", n, foundAtOnce)
	}
	close(uses.released)
	all.Wait()
}
