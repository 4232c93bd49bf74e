package device_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/pack"
	"lighter/store"
	"lighter/store/origin"
	"lighter/wire/client"
)

// emptyCache is a store.Cache that stores nothing.
type emptyCache struct{}

func (emptyCache) Read(chunk.Ref, int, []byte) bool { return false }
func (emptyCache) Load([]chunk.Ref)                 {}
func (emptyCache) Has(chunk.ID) bool                { return false }
func (emptyCache) Put(chunk.Ref, []byte)            {}
func (emptyCache) IsLoading() bool                  { return false }

// encodeUnit returns a unit as hubs send it, and the reference of its only chunk, "right".
func encodeUnit(t *testing.T) (unit []byte, ref chunk.Ref) {
	t.Helper()
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	ref = chunk.Ref{ID: chunk.Sum([]byte("right")), Length: 5, Unit: chunk.Unit{Pack: chunk.ID{7}}}
	var b pack.UnitBuilder
	b.Add(ref.ID, []byte("right"))
	return b.Encode(nil, encoder), ref
}

// unitsOf returns a fetcher of units from the hub at a URL.
func unitsOf(t *testing.T, url string) *store.Fetcher {
	t.Helper()
	hub, err := origin.New(slog.New(slog.DiscardHandler), client.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return store.NewFetcher(hub, emptyCache{})
}

// answer returns a handler that answers with a status and a body.
func answer(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// If something else answers in the hub's place for a while, a read waits until the hub answers.
// None of the wrong answers counts as "the chunk does not exist".
func TestForeignAnswers(t *testing.T) {
	const wrongAnswers = 6 // each attempt makes one or two requests
	page := "<html>default backend</html>"
	for name, wrong := range map[string]http.HandlerFunc{
		"404":        answer(404, ""),
		"404, HTML":  answer(404, page),
		"404, JSON":  answer(404, `{"error":"Not Found","path":"/"}`),
		"200, HTML":  answer(200, page),
		"200, empty": answer(200, ""),
		"410":        answer(410, page),
		"403":        answer(403, page),
		"502":        answer(502, page),
		"503":        answer(503, page),
		"redirect to a login": func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "/login", http.StatusFound)
		},
		"redirect to another host": func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "http://login.example.org/", http.StatusFound)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			unit, ref := encodeUnit(t)
			var asked atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				switch {
				case req.URL.Path == "/login":
					answer(200, page)(w, req)
				case asked.Add(1) <= wrongAnswers:
					wrong(w, req)
				default:
					_, _ = w.Write(unit)
				}
			}))
			t.Cleanup(server.Close)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			units, got := unitsOf(t, server.URL), make([]byte, ref.Length)
			if err := units.Share().Read(ctx, ref, 0, got, nil); err != nil || string(got) != "right" {
				t.Errorf("got %q and error %v after %d requests; want right and no error", got, err, asked.Load())
			}
			units.Wait()
		})
	}
}
