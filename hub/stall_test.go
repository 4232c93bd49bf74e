package hub

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// If a client stops sending or receiving, its request is ended.
func TestStalledClients(t *testing.T) {
	t.Parallel()
	ended := make(chan error)
	server := httptest.NewServer(unstalled(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, err := io.Copy(io.Discard, req.Body)
		for block := make([]byte, 1<<20); err == nil; {
			if _, err = w.Write(block); err == nil && req.URL.Path == "/file" {
				_, err = io.Copy(w, io.LimitReader(zeros{}, 1<<30))
			}
		}
		ended <- err
	}), 50*time.Millisecond))
	defer server.Close()
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n12345",
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /file HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprint(conn, request); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("request %q ended with %v, want ErrDeadlineExceeded", request, err)
		}
		conn.Close()
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// An answer whose handler pauses between pieces, or that is longer than a piece, arrives complete.
func TestSlowAnswersAreWhole(t *testing.T) {
	t.Parallel()
	want := bytes.Repeat([]byte("0123456789abcdef"), (2*stallPiece+999)/16)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, want, 0o600); err != nil {
		t.Fatal(err)
	}
	const timeout = 300 * time.Millisecond
	server := httptest.NewServer(unstalled(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		f, err := os.Open(file)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		switch req.URL.Path {
		case "/piecewise":
			for _, piece := range [][]byte{want[:10], want[10:]} {
				_, _ = w.Write(piece)
				_ = http.NewResponseController(w).Flush()
				time.Sleep(2 * timeout)
			}
		case "/part":
			_, _ = io.Copy(w, io.LimitReader(f, stallPiece+1))
		default:
			_, _ = io.Copy(w, f)
		}
	}), timeout))
	defer server.Close()
	for path, size := range map[string]int{"/piecewise": len(want), "/": len(want), "/part": stallPiece + 1} {
		res, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || !bytes.Equal(got, want[:size]) {
			t.Errorf("%s: %d bytes, %v, want %d bytes", path, len(got), err, size)
		}
	}
}
