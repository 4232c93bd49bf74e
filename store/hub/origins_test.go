package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
)

var right = bytes.Repeat([]byte("what was asked for\n"), 1000)

// takeRight accepts the right bytes alone.
func takeRight(length int64, body io.Reader) error {
	got, err := io.ReadAll(io.LimitReader(body, int64(2*len(right))))
	if err == nil && !bytes.Equal(got, right) {
		err = &chunk.InvalidError{What: "the answer", Err: fmt.Errorf("%d bytes, %d were promised", len(got), length)}
	}
	return err
}

func good(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(right) }

func origins(t *testing.T, handlers ...http.HandlerFunc) *Origins {
	t.Helper()
	var clients []*Client
	for _, handler := range handlers {
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		clients = append(clients, clientOf(t, Options{URL: server.URL}))
	}
	s := NewOrigins(slog.New(slog.DiscardHandler), clients...)
	s.stall, s.begin, s.last, s.unit = 200*time.Millisecond, 200*time.Millisecond, 5*time.Second, time.Second
	return s
}

// raw answers with what write sends on the connection itself, until it is closed.
func raw(write func(conn net.Conn)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		write(conn)
	}
}

// still says nothing until the client has gone.
func still(w http.ResponseWriter, req *http.Request) {
	_ = http.NewResponseController(w).Flush() // what cannot be sent is not missed
	<-req.Context().Done()
}

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		http.Error(w, "<html>no</html>", code)
	}
}

// faults are all the ways in which an origin may fail us.
var faults = map[string]http.HandlerFunc{
	"page":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>log in</html>") },
	"empty": func(http.ResponseWriter, *http.Request) {},
	"half":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(right[:len(right)/2]) },
	"more": func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(append(bytes.Clone(right), 'x'))
	},
	"flipped": func(w http.ResponseWriter, _ *http.Request) {
		b := bytes.Clone(right)
		b[100] ^= 1
		_, _ = w.Write(b)
	},
	"shorter than promised": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(right)))
		_, _ = w.Write(right[:100])
	},
	"longer than promised": raw(func(conn net.Conn) {
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(right)-100, right)
	}),
	"cut off": func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(right[:5000])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	},
	"endless headers": raw(func(conn net.Conn) {
		_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
		for i := 0; err == nil; i++ {
			_, err = fmt.Fprintf(conn, "X-%d: more\r\n", i)
		}
	}),
	"slow headers": raw(func(conn net.Conn) {
		_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
		for i := 0; err == nil; i++ {
			time.Sleep(20 * time.Millisecond)
			_, err = fmt.Fprintf(conn, "X-%d: more\r\n", i)
		}
	}),
	"no HTTP": raw(func(conn net.Conn) { _, _ = io.WriteString(conn, "220 mail.example.org ESMTP\r\n") }),
	"hung up": raw(func(net.Conn) {}),
	"silent":  func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() },
	"silent after the header": func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(right)))
		still(w, req)
	},
	"silent in the middle": func(w http.ResponseWriter, req *http.Request) {
		_, _ = w.Write(right[:5000])
		still(w, req)
	},
	"drips": func(w http.ResponseWriter, req *http.Request) {
		for req.Context().Err() == nil {
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	},
	"error":          status(500),
	"bad gateway":    status(502),
	"busy":           status(503, "Retry-After", "20"),
	"busy until":     status(429, "Retry-After", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)),
	"slow to refuse": func(w http.ResponseWriter, req *http.Request) { w.WriteHeader(500); still(w, req) },
	"redirects": func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, req.URL.Path+"x", http.StatusFound)
	},
	"redirects to nowhere": func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, "http://127.0.0.1:1/", http.StatusFound)
	},
}

// Whatever is wrong with an origin, the next one gives what was asked for, and is
// preferred from then on. Alone it is an error, and never another answer.
func TestFaults(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := origins(t, fault, good)
			if from, err := s.Unit(t.Context(), chunk.Unit{}, takeRight); err != nil || from != s.all[1].client.URL() {
				t.Fatalf("with another: from %s, %v", from, err)
			}
			if h := s.Health(); h[0].Up || h[0].Error == "" || h[0].Failures != 1 || !h[1].Up || h[1].Failures != 0 {
				t.Errorf("health: %+v", h)
			}
			s.all[0].again = time.Now().Add(time.Hour)
			if _, err := s.Unit(t.Context(), chunk.Unit{}, takeRight); err != nil || s.Health()[0].Requests != 1 {
				t.Errorf("it is asked again: %v", err)
			}
			s = origins(t, fault)
			s.last = s.stall
			_, err := s.Unit(t.Context(), chunk.Unit{}, takeRight)
			invalid := errors.As(err, new(*chunk.InvalidError))
			if lies := strings.Contains("page empty half more flipped longer than promised", name); lies != invalid || err == nil {
				t.Errorf("alone: %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), s.URL()) && !strings.Contains(name, "redirects") {
				t.Errorf("it does not name the hub: %v", err)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		s := NewOrigins(slog.New(slog.DiscardHandler), clientOf(t, Options{URL: "http://127.0.0.1:1"}), origins(t, good).all[0].client)
		if _, err := s.Unit(t.Context(), chunk.Unit{}, takeRight); err != nil || s.Health()[0].Up {
			t.Errorf("%v, %+v", err, s.Health())
		}
	})
}

// drip sends what is right, a byte at a time.
func drip(b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		for len(b) > 0 && req.Context().Err() == nil {
			_, _ = w.Write(b[:1])
			_ = http.NewResponseController(w).Flush()
			b = b[1:]
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// An index whose stream turns out bad comes from another origin.
func TestIndexFromAnotherOrigin(t *testing.T) {
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	stored := encoder.EncodeAll(right, nil)
	flipped := bytes.Clone(stored)
	flipped[len(flipped)/2] ^= 1
	send := func(b []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b) }
	}
	s := origins(t, send(stored[:len(stored)-9]), send(flipped), send([]byte("<html>")), send(encoder.EncodeAll([]byte("another"), nil)),
		status(500), func(w http.ResponseWriter, req *http.Request) { _, _ = w.Write(stored[:20]); still(w, req) }, drip(stored), send(stored))
	err = s.Index(t.Context(), chunk.ID{}, func(plain io.Reader) error { return takeRight(-1, plain) })
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range s.Health() {
		if h.Up != (i == len(s.all)-1) || h.Requests != 1 {
			t.Errorf("%d: %+v", i, h)
		}
	}
}

// One that wants to be left alone is, for a time that is bounded.
func TestRetryAfter(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"7": 7 * time.Second, "100000": maxPause, "-1": 0, "soon": 0, "": 0, "99999999999999999999": 0,
		time.Now().Add(20 * time.Second).UTC().Format(http.TimeFormat): 20 * time.Second,
		time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat):       0,
	} {
		var asked atomic.Int32
		s := origins(t, func(w http.ResponseWriter, req *http.Request) {
			asked.Add(1)
			status(503, "Retry-After", text)(w, req)
		})
		for range 2 {
			var down *Unavailable
			_, err := s.Unit(t.Context(), chunk.Unit{}, takeRight)
			if !errors.As(err, &down) || down.After > want || want > 0 && down.After < want/2 {
				t.Errorf("%q: %v, %+v", text, err, down)
			}
		}
		if left := asked.Load() == 1; left != (want > 0) {
			t.Errorf("%q: asked %d times", text, asked.Load())
		}
	}
}

// fakes are origins that answer as they are told.
type fakes struct {
	*Origins
	mu     sync.Mutex // guards what follows
	asked  []int
	answer []error
	takes  time.Duration
}

// from has all requests from now on answered so.
func (f *fakes) from(takes time.Duration, answer ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.takes, f.answer, f.asked = takes, answer, make([]int, len(answer))
}

func newFakes(t *testing.T, answer ...error) *fakes {
	t.Helper()
	f := &fakes{answer: answer, asked: make([]int, len(answer))}
	var clients []*Client
	for range answer {
		clients = append(clients, clientOf(t, Options{URL: "http://127.0.0.1:1"}))
	}
	f.Origins = NewOrigins(slog.New(slog.DiscardHandler), clients...)
	return f
}

func (f *fakes) call(t *testing.T, anyway bool) error {
	t.Helper()
	return f.try(t.Context(), anyway, func(_ context.Context, o *origin, _ int) error {
		for i := range f.all {
			if f.all[i] == o {
				f.mu.Lock()
				f.asked[i]++
				takes, answer := f.takes, f.answer[i]
				f.mu.Unlock()
				time.Sleep(takes)
				return answer
			}
		}
		return nil
	})
}

var (
	errBroken = errors.New("connection refused")
	errGone   = fmt.Errorf("unit: %w", chunk.ErrNotFound)
	errLie    = &chunk.InvalidError{What: "unit", Err: errors.New("html")}
	errForbid = &Error{Status: http.StatusForbidden, Message: "no"}
)

// What is there decides, then what may be; only what all do not have is not there.
func TestWhatCounts(t *testing.T) {
	for _, c := range []struct {
		answers               []error
		unavailable, notFound bool
		up                    int
	}{
		{[]error{errGone, nil}, false, false, 2},
		{[]error{errLie, errGone, nil}, false, false, 2},
		{[]error{errGone, errGone}, false, true, 2},
		{[]error{errForbid, errGone}, false, true, 2},
		{[]error{errBroken, errGone}, true, false, 1},
		{[]error{errGone, errBroken}, true, false, 1},
		{[]error{errBroken, errBroken}, true, false, 0},
		{[]error{errLie, errBroken}, true, false, 0},
		{[]error{errLie, errGone}, false, false, 1},
		{[]error{errForbid, errForbid}, false, false, 2},
	} {
		f := newFakes(t, c.answers...)
		err := f.call(t, true)
		var down *Unavailable
		if errors.As(err, &down) != c.unavailable || errors.Is(err, chunk.ErrNotFound) != c.notFound || (err == nil) != (c.answers[len(c.answers)-1] == nil) {
			t.Errorf("%v: %v", c.answers, err)
		}
		if down != nil && down.Missed() != errors.Is(errors.Join(c.answers...), chunk.ErrNotFound) {
			t.Errorf("%v: missed %v", c.answers, down.Missed())
		}
		up := 0
		for _, h := range f.Health() {
			if h.Up {
				up++
			}
		}
		if up != c.up {
			t.Errorf("%v: %d are up, want %d", c.answers, up, c.up)
		}
	}
}

// The first is passed over while it fails, asked by one at a time after pauses
// that grow, and used again by all once it answers.
func TestTheFirstIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, errBroken, nil)
		last, longest := time.Now(), time.Duration(0)
		for n := 0; n < 600_000; n += 100 { // ten minutes
			before := f.asked[0]
			if err := f.call(t, true); err != nil {
				t.Fatal(err)
			}
			if f.asked[0] > before {
				longest, last = max(longest, time.Since(last)), time.Now()
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := f.asked[0]; n < 10 || n > 60 || f.asked[1] != 6000 {
			t.Errorf("asked %d times", f.asked)
		}
		if longest > maxPause+time.Second || longest < maxPause/2 {
			t.Errorf("the longest pause was %s", longest)
		}
		// It answers slowly: one finds out, the others do not wait for it.
		f.from(time.Second, nil, nil)
		time.Sleep(maxPause)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if err := f.call(t, true); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		if f.asked[0] != 1 || f.asked[1] != 9 {
			t.Errorf("while one finds out: %d", f.asked)
		}
		if err := f.call(t, true); err != nil || f.asked[0] != 2 || !f.Health()[0].Up {
			t.Errorf("once it is back: %d, %v", f.asked, err)
		}
	})
}

// Where none is up, a reader's request is made anyway, and a pull's is not.
func TestAllAreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, errBroken, errBroken)
		for range 5 {
			if err := f.call(t, false); !errors.As(err, new(*Unavailable)) || !errors.Is(err, errBroken) {
				t.Errorf("%v", err)
			}
		}
		if f.asked[0] != 1 || f.asked[1] != 1 {
			t.Errorf("a pull asked %d times", f.asked)
		}
		f.answer[1] = nil
		if err := f.call(t, true); err != nil || f.asked[0] != 2 || f.asked[1] != 2 {
			t.Errorf("a reader: %d, %v", f.asked, err)
		}
		if err := f.call(t, false); err != nil || f.asked[0] != 2 {
			t.Errorf("a pull once one is back: %d, %v", f.asked, err)
		}
		// The one that is up goes, and the other one is back, which nobody knows yet.
		f.from(0, nil, errBroken)
		if err := f.call(t, false); err != nil || f.asked[0] != 1 || f.asked[1] != 1 {
			t.Errorf("a pull when the other one is back: %d, %v", f.asked, err)
		}
	})
}

// One object that cannot be had from an origin which gives others says nothing
// about the origin; nor do those who do not wait for an answer.
func TestOneObjectIsNotTheOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, errBroken)
		f.from(2*time.Second, errBroken)
		go f.call(t, true)
		time.Sleep(time.Second)
		f.from(0, nil)
		if err := f.call(t, true); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		if h := f.Health()[0]; !h.Up || h.Failures != 1 {
			t.Errorf("%+v", h)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		err := f.try(ctx, true, func(context.Context, *origin, int) error { cancel(why); return errBroken })
		if h := f.Health()[0]; !h.Up || !errors.Is(err, why) {
			t.Errorf("%+v, %v", h, err)
		}
		full := errors.New("no space left on device")
		err = f.try(t.Context(), true, func(context.Context, *origin, int) error { return ownError{full} })
		if h := f.Health()[0]; !h.Up || !errors.Is(err, full) {
			t.Errorf("%+v, %v", h, err)
		}
	})
}

// Origins that are silent share the time that whoever asks has, and the one that
// answers is asked in it.
func TestSilentOriginsShareTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, nil, nil, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := f.try(ctx, false, func(ctx context.Context, o *origin, others int) error {
			ctx, cancel := part(ctx, others)
			defer cancel()
			if o == f.all[2] {
				return ctx.Err()
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err != nil || f.Health()[0].Up || f.Health()[1].Up {
			t.Errorf("%v, %+v", err, f.Health())
		}
		silent := newFakes(t, nil)
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			err = silent.try(ctx, false, func(ctx context.Context, _ *origin, _ int) error { <-ctx.Done(); return ctx.Err() })
			if err == nil || silent.Health()[0].Up || silent.Health()[0].Requests != 1 {
				t.Errorf("after %s: %v, %+v", time.Since(start), err, silent.Health())
			}
		}
	})
}

// As many requests as Units make at a time are on their way at a time.
func TestConnectionsAreNotTheBottleneck(t *testing.T) {
	const n = 200
	var here sync.WaitGroup
	here.Add(n)
	s := origins(t, func(w http.ResponseWriter, req *http.Request) {
		here.Done()
		here.Wait()
		good(w, req)
	})
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if _, err := s.Unit(t.Context(), chunk.Unit{}, takeRight); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// An origin that fails to give locations is asked for other things as before, pulls
// too; one that asks to be left alone is.
func TestLocationsAreAHint(t *testing.T) {
	for name, fault := range map[string]http.HandlerFunc{
		"500": status(500), "page": good,
		"stalls": func(w http.ResponseWriter, req *http.Request) { <-req.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			s := origins(t, fault)
			s.last = s.stall
			for range 3 {
				err := s.Locations(t.Context(), chunk.ID{}, chunk.ID{}, func(plain io.Reader) error {
					_, err := io.ReadAll(plain)
					return err
				})
				if h := s.Health()[0]; err == nil || !h.Up || h.Failures == 0 {
					t.Errorf("%v, health %+v", err, h)
				}
			}
		})
	}
	s := origins(t, status(503, "Retry-After", "20"))
	if err := s.Locations(t.Context(), chunk.ID{}, chunk.ID{}, nil); err == nil || s.all[0].wait() == 0 {
		t.Errorf("it is not left alone: %v", err)
	}
}
