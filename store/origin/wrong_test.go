package origin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/wire"
)

// missing answers with a hub's own 404.
func missing(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set(wire.MissingHeader, "1")
	http.Error(w, `{"error":"not found"}`, http.StatusNotFound)
}

// Only a hub's own answer says that an object does not exist. Other answers do not count against
// an origin: a mirror's 404 is that of any web server.
func TestWhoSaysThatThereIsNone(t *testing.T) {
	proxy := status(http.StatusNotFound)
	for _, c := range []struct {
		name     string
		handlers []http.HandlerFunc
		notFound bool
	}{
		{"the hub", []http.HandlerFunc{missing}, true},
		{"both hubs", []http.HandlerFunc{missing, missing}, true},
		{"a proxy", []http.HandlerFunc{proxy}, false},
		{"a proxy and a hub", []http.HandlerFunc{proxy, missing}, false},
		{"a 410", []http.HandlerFunc{status(http.StatusGone)}, false},
		{"a 403 in the name of the hub", []http.HandlerFunc{status(http.StatusForbidden, wire.MissingHeader,
			"1")}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := origins(t, c.handlers...)
			s.timeout = timeouts{time.Minute, time.Minute, time.Minute, time.Minute,
				time.Minute} // machines may be slow
			ask := map[string]func() error{
				"unit":  func() error { _, err := fetchUnit(t, s, takeRight); return err },
				"index": func() error { return s.Index(t.Context(), chunk.ID{}, nil) },
			}
			for what, ask := range ask {
				err := ask()
				invalid := errors.As(err, new(*chunk.InvalidError))
				if errors.Is(err, chunk.ErrNotFound) != c.notFound || invalid == c.notFound {
					t.Errorf("%s: got %v, want not found: %t, otherwise an InvalidError", what, err, c.notFound)
				}
			}
			for i, h := range s.Health() {
				if !h.Up || h.Failures > 0 {
					t.Errorf("origin %d: got %+v, want it up, without failures", i, h)
				}
			}
			// For a lookup, any 404 counts, so that a pull goes on at once.
			_, err := s.Chain(t.Context(), "sha256:0")
			if err == nil || strings.Contains(c.name, "403") == errors.Is(err, chunk.ErrNotFound) {
				t.Errorf("chain: got %v, want an error: ErrNotFound after a 404, another one after a 403", err)
			}
		})
	}
}

// keeping is an HTTP cache that keeps every answer until a request bypasses it.
type keeping struct {
	origin http.Handler

	mu   sync.Mutex // guards kept
	kept map[string]*httptest.ResponseRecorder
}

func (k *keeping) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept[req.URL.Path] == nil || req.Header.Get("Cache-Control") == "no-cache" {
		answer := httptest.NewRecorder()
		k.origin.ServeHTTP(answer, req)
		k.kept[req.URL.Path] = answer
	}
	kept := k.kept[req.URL.Path]
	w.WriteHeader(kept.Code)
	_, _ = w.Write(kept.Body.Bytes())
}

// After a wrong answer, the next request bypasses HTTP caches, and only that one.
func TestCacheThatKeptAWrongAnswer(t *testing.T) {
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	stored := encoder.EncodeAll(right, nil)
	plain := func(plain io.Reader) error { return takeRight(-1, plain) }
	for wrong, answer := range map[string]http.HandlerFunc{
		"page":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>log in</html>") },
		"flipped": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(append([]byte{1}, stored[1:]...)) },
		"404":     status(http.StatusNotFound),
	} {
		for what, ask := range map[string]func(s *Failover) error{
			"unit": func(s *Failover) error {
				_, err := fetchUnit(t, s, func(_ int64, body io.Reader) error {
					decoder, err := zstd.NewReader(body)
					if err != nil {
						return err
					}
					defer decoder.Close()
					if err := takeRight(-1, decoder); err != nil {
						return &chunk.InvalidError{What: "the answer", Err: err}
					}
					return nil
				})
				return err
			},
			"index":     func(s *Failover) error { return s.Index(t.Context(), chunk.ID{}, plain) },
			"locations": func(s *Failover) error { return s.Locations(t.Context(), chunk.ID{}, chunk.ID{}, plain) },
		} {
			t.Run(wrong+" for "+what, func(t *testing.T) {
				asked := 0
				hub := func(w http.ResponseWriter, req *http.Request) {
					if asked++; asked == 1 {
						answer(w, req)
						return
					}
					_, _ = w.Write(stored)
				}
				cache := &keeping{kept: map[string]*httptest.ResponseRecorder{}, origin: http.HandlerFunc(hub)}
				s := origins(t, cache.ServeHTTP)
				s.timeout.last, s.timeout.unit = time.Minute, time.Minute // machines may be slow
				if err := ask(s); err == nil {
					t.Fatal("the wrong answer is accepted")
				}
				for range 3 {
					if err := ask(s); err != nil {
						t.Error(err)
					}
				}
				if asked != 2 {
					t.Errorf("the cache sent %d requests, want 2", asked)
				}
			})
		}
	}
}

// The number of remembered paths is bounded.
func TestWrongAnswersAreBounded(t *testing.T) {
	var w wrongAnswers
	for i := range 3 * maxWrong {
		w.add(fmt.Sprint(i))
		if len(w.paths) > maxWrong || !w.has(fmt.Sprint(i)) {
			t.Fatalf("after %d paths: got %d remembered, want at most %d and the latest", i+1, len(w.paths), maxWrong)
		}
	}
}

// After a wrong answer, the next request uses another connection, so that late bytes of the first
// answer do not become part of the second.
func TestLateBytesOfAWrongAnswer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	reused := make(chan bool, 1) // whether the first connection carried a second request
	serve := func(conn net.Conn, first bool) {
		defer conn.Close()
		in := bufio.NewReader(conn)
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		if !first {
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(right), right)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")
		_, err := http.ReadRequest(in)
		reused <- err == nil
		_, _ = io.WriteString(conn, "late bytes\r\n\r\n")
	}
	served.Go(func() {
		for first := true; ; first = false {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			served.Go(func() { serve(conn, first) })
		}
	})
	s := over(t, "http://"+listener.Addr().String())
	t.Cleanup(func() {
		listener.Close()
		s.all[0].client.CloseIdleConnections()
		served.Wait()
	})
	if _, err := fetchUnit(t, s, takeRight); !errors.As(err, new(*chunk.InvalidError)) {
		t.Fatal(err)
	}
	if _, err := fetchUnit(t, s, takeRight); err != nil {
		t.Error(err)
	}
	if <-reused {
		t.Error("the second request used the connection of the first")
	}
}
