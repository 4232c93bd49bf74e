package answer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub/answer"
	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

const base = wire.Prefix + "/" + wire.DefaultDomain

func do(h http.Handler, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w
}

// Each error has one status. Unexpected errors, and errors of a store that is away, are logged
// without the request's query.
func TestStatuses(t *testing.T) {
	for want, errs := range map[int][]error{
		400: {report.ErrInvalid, answer.Invalid(errors.New("bad"))},
		403: {registry.ErrQuota},
		404: {catalog.ErrNotFound, objects.ErrNotFound, registry.ErrNotFound, chunk.ErrNotFound},
		413: {&http.MaxBytesError{Limit: 1}},
		429: {catalog.ErrFull, catalog.ErrTooMany, report.ErrSenderFull},
		500: {errors.New("disk")},
		503: {report.ErrBusy, context.Canceled, context.DeadlineExceeded, catalog.ErrAway, objects.ErrUnavailable,
			registry.ErrUnavailable},
	} {
		for _, err := range errs {
			var log bytes.Buffer
			mux := answer.NewMux(wire.DefaultDomain, slog.New(slog.NewTextHandler(&log, nil)))
			mux.Handle("GET", "/thing", func(w http.ResponseWriter, _ *http.Request) error {
				w.Header().Set("ETag", `"tag"`)
				return fmt.Errorf("wrapped: %w", err)
			})
			w := do(mux, "GET", base+"/thing?token=secret")
			var body struct{ Error string }
			if jsonErr := json.Unmarshal(w.Body.Bytes(), &body); w.Code != want || jsonErr != nil ||
				body.Error != "wrapped: "+err.Error() {
				t.Errorf("%v: %d %s, want %d", err, w.Code, w.Body, want)
			}
			if w.Header().Get("ETag") != "" || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%v: headers %v, want no-store and no ETag", err, w.Header())
			}
			if missing := w.Header().Get(wire.MissingHeader) != ""; missing != (want == 404) {
				t.Errorf("%v: status %d, and %s is set: %v", err, want, wire.MissingHeader, missing)
			}
			logged := log.Len() > 0
			if logged != (want == 500 || away.Is(err)) || strings.Contains(log.String(), "secret") {
				t.Errorf("%v: the log is %q, want a line without the query for status 500 and for away.Is only", err,
					log.String())
			}
		}
	}
}

// The answer for an unknown path is JSON, without the header that tells caches and nodes that an
// object is missing.
func TestUnknownPaths(t *testing.T) {
	mux := answer.NewMux(wire.DefaultDomain, slog.New(slog.DiscardHandler))
	mux.Handle("GET", "/thing", func(http.ResponseWriter, *http.Request) error { return nil })
	for _, request := range []string{"GET /", "POST " + base + "/thing", "GET /lighter/1/other/thing"} {
		method, path, _ := strings.Cut(request, " ")
		w := do(mux, method, path)
		if w.Code != 404 || w.Header().Get(wire.MissingHeader) != "" || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: %d %v %s, want 404 with JSON and without %s", request, w.Code, w.Header(), w.Body,
				wire.MissingHeader)
		}
	}
}

// Bodies are bounded one by one and together.
func TestBodies(t *testing.T) {
	bodies := answer.NewBodies()
	read := func(ctx context.Context, body string, limit int64) ([]byte, func(), error) {
		req := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader(body))
		return bodies.Read(httptest.NewRecorder(), req, limit)
	}
	if _, _, err := read(t.Context(), "too long", 3); !errors.As(err, new(*http.MaxBytesError)) {
		t.Errorf("a body that is too long: %v, want a MaxBytesError", err)
	}
	// A body of unknown length reserves memory for its limit.
	unknown := httptest.NewRequest("POST", "/", strings.NewReader("text"))
	unknown.ContentLength = -1
	body, release, err := bodies.Read(httptest.NewRecorder(), unknown, 2*trace.MaxText)
	if err != nil || string(body) != "text" {
		t.Fatalf("a body of unknown length: %q, %v, want %q", body, err, "text")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := read(ended, "x", 3); !errors.Is(err, report.ErrBusy) {
		t.Errorf("without room: %v, want ErrBusy", err)
	}
	release()
	if body, _, err := read(t.Context(), "x", 3); err != nil || string(body) != "x" {
		t.Errorf("with room again: %q, %v, want %q", body, err, "x")
	}
}

func ExampleMux() {
	mux := answer.NewMux(wire.DefaultDomain, slog.New(slog.DiscardHandler))
	mux.HandleJSON("GET", "/things/{name}", "no-cache", func(_ http.ResponseWriter, req *http.Request) (any, error) {
		if name := req.PathValue("name"); name != "known" {
			return nil, fmt.Errorf("thing %s: %w", name, catalog.ErrNotFound)
		}
		return map[string]int{"size": 7}, nil
	})
	for _, name := range []string{"known", "other"} {
		w := do(mux, "GET", base+"/things/"+name)
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 200 {"size":7}
	// 404 {"error":"thing other: not found"}
}
