package origin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
)

// raw answers with the bytes that write sends on the connection.
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

// still sends nothing more until the client has gone.
func still(w http.ResponseWriter, req *http.Request) {
	_ = http.NewResponseController(w).Flush() // an error changes nothing
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

// faults are the ways in which an origin may fail.
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

// If an origin fails in any way, the next one gives the object and is preferred from then on. A
// single origin that fails is an error, never a wrong answer.
func TestFaults(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := origins(t, fault, good)
			s.timeout.last, s.timeout.unit = time.Minute, time.Minute // for the good origin, as machines may be slow
			if from, err := fetchUnit(t, s, takeRight); err != nil || from != s.all[1].client.URL() {
				t.Fatalf("with a good origin: got %s, %v; want an answer of the second origin", from, err)
			}
			if h := s.Health(); h[0].Up || h[0].Error == "" || h[0].Failures != 1 || !h[1].Up || h[1].Failures != 0 {
				t.Errorf("health: got %+v, want the first origin down and the second up", h)
			}
			s.all[0].again = time.Now().Add(time.Hour)
			if _, err := fetchUnit(t, s, takeRight); err != nil || s.Health()[0].Requests != 1 {
				t.Errorf("the next unit: got %v, %d requests to the failed origin; want no error and 1 request",
					err, s.Health()[0].Requests)
			}
			s = origins(t, fault)
			isWrong := strings.Contains("page empty half more flipped longer than promised", name)
			if s.timeout.last, s.timeout.unit = s.timeout.stall, time.Minute; isWrong {
				s.timeout.last = time.Minute // wrong answers, not silence
			}
			_, err := fetchUnit(t, s, takeRight)
			invalid := errors.As(err, new(*chunk.InvalidError))
			if isWrong != invalid || err == nil {
				t.Errorf("a single origin: got %v, want an error, an InvalidError: %t", err, isWrong)
			}
			if err != nil && !strings.Contains(err.Error(), s.URL()) && !strings.Contains(name, "redirects") {
				t.Errorf("the error does not name the hub: %v", err)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		s := over(t, "http://127.0.0.1:1", origins(t, good).URL())
		if _, err := fetchUnit(t, s, takeRight); err != nil || s.Health()[0].Up {
			t.Errorf("got %v, %+v; want no error, and the first origin down", err, s.Health())
		}
	})
}
