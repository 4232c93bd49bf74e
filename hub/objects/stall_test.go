package objects_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lighter/hub/objects"
)

// stall is the time after which the requests of the tests count as stalled.
const stall = time.Second

// signed sets credentials for S3.
func signed(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "user")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
}

// s3URL returns the URL of a bucket at a server that answers as handler does. The kernel buffers
// few bytes that the server has not read.
func s3URL(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		_ = conn.(*net.TCPConn).SetReadBuffer(64 << 10) // the tests fail if it is larger
		return ctx
	}
	server.Start()
	t.Cleanup(server.Close)
	q := url.Values{"region": {"us-east-1"}, "endpoint": {server.URL}, "use_path_style": {"true"},
		"stall_timeout": {stall.String()}}
	return "s3://bucket?" + q.Encode()
}

// openAt opens a store at a server that answers requests about packs as handler does.
func openAt(t *testing.T, handler http.HandlerFunc) *objects.Store {
	t.Helper()
	s, err := objects.Open(t.Context(), s3URL(t, func(w http.ResponseWriter, req *http.Request) {
		if !strings.HasPrefix(req.URL.Path, "/bucket/packs/") {
			fmt.Fprint(w, "<ListBucketResult></ListBucketResult>")
			return
		}
		handler(w, req)
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// hang neither answers nor reads until the test ends.
func hang(t *testing.T, w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	<-t.Context().Done()
}

// stagedFile makes a file of some bytes that can be published.
func stagedFile(t *testing.T, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "staged")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A request that a server accepts and does not answer is made three times in all. Then it fails,
// although the caller's context has not ended.
func TestHangingRequestsEnd(t *testing.T) {
	large := 32 << 20 // more than the kernel's buffers
	signed(t)
	for name, c := range map[string]struct {
		method string
		do     func(t *testing.T, s *objects.Store) error
	}{
		"read": {http.MethodGet, func(t *testing.T, s *objects.Store) error {
			_, err := read(t.Context(), s, "packs/a")
			return err
		}},
		"size": {http.MethodHead, func(t *testing.T, s *objects.Store) error {
			_, err := s.Size(t.Context(), "packs/a")
			return err
		}},
		"publish": {http.MethodPut, func(t *testing.T, s *objects.Store) error {
			return s.Publish(t.Context(), []objects.Staged{{Key: "packs/a", Path: stagedFile(t, 10)}})
		}},
		"publish much": {http.MethodPut, func(t *testing.T, s *objects.Store) error {
			return s.Publish(t.Context(), []objects.Staged{{Key: "packs/a", Path: stagedFile(t, large)}})
		}},
		"delete": {http.MethodPost, func(t *testing.T, s *objects.Store) error {
			return s.Delete(t.Context(), []string{"packs/a", "packs/b"})
		}},
	} {
		for _, hanging := range []int64{2, 100} {
			t.Run(fmt.Sprintf("%s, %d times", name, hanging), func(t *testing.T) {
				t.Parallel() // they mostly wait
				var tries atomic.Int64
				hangs := func(w http.ResponseWriter, req *http.Request) {
					if req.Method == c.method && tries.Add(1) <= hanging {
						hang(t, w)
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					if req.Method == http.MethodPost {
						fmt.Fprint(w, "<DeleteResult></DeleteResult>")
					}
				}
				s, err := objects.Open(t.Context(), s3URL(t, func(w http.ResponseWriter, req *http.Request) {
					if req.URL.Path == "/bucket" && req.Method != http.MethodPost {
						fmt.Fprint(w, "<ListBucketResult></ListBucketResult>")
						return
					}
					hangs(w, req)
				}))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.Close() }) // it waits for requests, which end with the test's context
				ended := make(chan error, 1)
				go func() { ended <- c.do(t, s) }()
				select {
				case err = <-ended:
				case <-time.After(time.Minute):
					t.Fatal("the request has not ended after a minute")
				}
				if (err != nil) != (hanging > 2) || tries.Load() != 3 {
					t.Errorf("error %v after %d tries, want 3 tries, and success: %t", err, tries.Load(),
						hanging == 2)
				}
				if err != nil && (errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "stalled")) {
					t.Errorf("%v, want an error that says that the server has stalled", err)
				}
			})
		}
	}
}

// An answer that stops in the middle is an error, and not the end of the object.
func TestStalledAnswerIsAnError(t *testing.T) {
	signed(t)
	s := openAt(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write(make([]byte, 50))
		w.(http.Flusher).Flush()
		hang(t, w)
	})
	if b, err := read(t.Context(), s, "packs/a"); !errors.Is(err, objects.ErrUnavailable) ||
		errors.Is(err, context.Canceled) {
		t.Errorf("read %d bytes, error %v, want ErrUnavailable and not Canceled", len(b), err)
	}
}

// An upload or a download that makes progress may take longer than the limit, and its reader may
// pause for longer. The server may also take longer to copy an object.
func TestSlowTransfersSucceed(t *testing.T) {
	signed(t)
	const steps = 8
	tick := stall / 4
	size := steps * (4 << 20) // more than the kernel buffers
	slowly := func(w http.ResponseWriter, req *http.Request) {
		switch req.Method {
		case http.MethodGet:
			for range steps {
				_, _ = w.Write(make([]byte, size/steps))
				w.(http.Flusher).Flush()
				time.Sleep(tick)
			}
		case http.MethodPut:
			if req.Header.Get("X-Amz-Copy-Source") != "" {
				time.Sleep(2 * stall)
				fmt.Fprint(w, "<CopyObjectResult></CopyObjectResult>")
				return
			}
			for {
				if _, err := io.CopyN(io.Discard, req.Body, int64(size/steps)); err != nil {
					return
				}
				time.Sleep(tick)
			}
		}
	}
	s := openAt(t, slowly)
	if err := s.Publish(t.Context(), []objects.Staged{{Key: "packs/a", Path: stagedFile(t, size)}}); err != nil {
		t.Error(err)
	}
	o, err := s.Open(t.Context(), "packs/a")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	var b bytes.Buffer
	if _, err := io.CopyN(&b, o, 10); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * stall)
	if _, err := io.Copy(&b, o); err != nil || b.Len() != size {
		t.Errorf("read %d bytes, %v, want %d", b.Len(), err, size)
	}
	u, err := url.Parse(s3URL(t, slowly))
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := objects.OpenS3(t.Context(), *u)
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	if err := bucket.Copy(t.Context(), "packs/b", "packs/a", nil); err != nil {
		t.Error(err)
	}
}

func TestLimitsThatAreNoDurations(t *testing.T) {
	for _, text := range []string{"60", "0s", "-1s", "x"} {
		_, err := objects.Open(t.Context(), "s3://bucket?region=us-east-1&stall_timeout="+text)
		if err == nil || !strings.Contains(err.Error(), "stall_timeout="+text) {
			t.Errorf("%s: %v, want an error that names the parameter", text, err)
		}
	}
}

func read(ctx context.Context, s *objects.Store, key string) ([]byte, error) {
	o, err := s.Open(ctx, key)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	return io.ReadAll(o)
}
