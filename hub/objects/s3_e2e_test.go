//go:build e2e

package objects_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lighter/hub/objects"
	"lighter/test/testkit/objectstest"
	"lighter/test/testkit/s3"
)

// openBuckets starts an S3 server, and returns a function that makes an empty bucket.
func openBuckets(t *testing.T) func(t *testing.T) (bucket string) {
	server, err := s3.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	n := 0
	return func(t *testing.T) string {
		n++
		bucket, err := server.Bucket(n)
		if err != nil {
			t.Fatal(err)
		}
		return bucket
	}
}

func openStore(t *testing.T, bucket string) *objects.Store {
	t.Helper()
	s, err := objects.Open(t.Context(), bucket)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformanceOfS3(t *testing.T) {
	newBucket := openBuckets(t)
	objectstest.Run(t, func(t *testing.T) *objects.Store { return openStore(t, newBucket(t)) }, (*testing.T).TempDir)
}

// Stores below a prefix of a bucket have objects of their own, whatever the bucket has beside them.
func TestConformanceOfPrefixes(t *testing.T) {
	newBucket := openBuckets(t)
	objectstest.Run(t, func(t *testing.T) *objects.Store { return openStore(t, newBucket(t)+"&prefix=domains/a/") },
		(*testing.T).TempDir)
	bucket := newBucket(t)
	stores := map[string]*objects.Store{"": openStore(t, bucket), "a": openStore(t, bucket+"&prefix=domains/a/"),
		"b": openStore(t, bucket+"&prefix=domains/b/")}
	keys := []string{objects.LayerKey("sha256:01"), objects.LayerKey("sha256:02"), objects.LayerKey("sha256:03")}
	for name, s := range stores {
		for _, key := range keys {
			publish(t, s, key, []byte(name+key))
		}
	}
	if err := stores["a"].Delete(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	for name, s := range stores {
		var want []string
		if name != "a" {
			want = keys[1:]
		}
		var got []string
		for info, err := range s.List(t.Context(), keys[0]) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, info.Key)
		}
		if !slices.Equal(got, want) {
			t.Errorf("store %q has %v after the first, want %v", name, got, want)
		}
	}
}

// A bucket that was deleted does not say that objects are lost.
func TestStoreWithoutItsBucket(t *testing.T) {
	server, err := s3.New()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	bucket, err := server.Bucket(1)
	if err != nil {
		t.Fatal(err)
	}
	s := openStore(t, bucket)
	defer s.Close()
	u, err := url.Parse(bucket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(server.Dir(u.Host)); err != nil {
		t.Fatal(err)
	}
	wantUnavailable(t, s)
}

// Many objects are deleted with few requests.
func TestDeleteTakesOneRequest(t *testing.T) {
	var requests atomic.Int64
	bucket, proxy, err := s3.Proxy(openBuckets(t)(t), func(w http.ResponseWriter, req *http.Request,
		forward http.HandlerFunc) {
		if req.Method == http.MethodDelete || req.URL.Query().Has("delete") {
			requests.Add(1)
		}
		forward(w, req)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	s := openStore(t, bucket)
	var keys []string
	for i := range 20 {
		keys = append(keys, objects.LayerKey(fmt.Sprintf("sha256:%02d", i)))
		publish(t, s, keys[i], []byte("x"))
	}
	if err := s.Delete(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests to delete %d objects, want 1", n, len(keys))
	}
	for o := range s.List(t.Context(), "") {
		t.Errorf("%s is left", o.Key)
	}
}

// A bucket that cannot be used is an error at the start, not at the first push.
func TestBucketsThatCannotBeUsed(t *testing.T) {
	bucket := openBuckets(t)(t)
	for name, bad := range map[string]string{
		"missing bucket": strings.Replace(bucket, "bucket-1", "bucket-2", 1),
		"bad name":       strings.Replace(bucket, "bucket-1", "b", 1),
		"other port":     "s3://bucket-1?region=us-east-1&endpoint=http://127.0.0.1:1&use_path_style=true",
	} {
		if _, err := objects.Open(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "open bucket s3://") {
			t.Errorf("%s: %v, want an error that names it", name, err)
		}
	}
}

// A server that is faulty now and then costs time. Truncated objects and hanging requests are
// errors.
func TestFaultyS3(t *testing.T) {
	newBucket := openBuckets(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<12)
	const key = "packs/one"
	unavailable := func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	forgets := func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		forward(httptest.NewRecorder(), req) // the request is done, and the answer gets lost
		panic(http.ErrAbortHandler)
	}
	for name, fault := range map[string]s3.Fault{"unavailable": unavailable, "done after a time-out": forgets} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			seen := map[string]int{}
			bucket, proxy, err := s3.Proxy(newBucket(t), func(w http.ResponseWriter, req *http.Request,
				forward http.HandlerFunc) {
				mu.Lock()
				seen[req.Method]++
				first := seen[req.Method] == 1
				mu.Unlock()
				if first {
					fault(w, req, forward)
					return
				}
				forward(w, req)
			})
			if err != nil {
				t.Fatal(err)
			}
			defer proxy.Close()
			s := openStore(t, bucket)
			publish(t, s, key, content)
			if b, err := read(t.Context(), s, key); err != nil || !bytes.Equal(b, content) {
				t.Errorf("read %d bytes, %v, want %d", len(b), err, len(content))
			}
			if size, err := s.Size(t.Context(), key); err != nil || size != int64(len(content)) {
				t.Errorf("size %d, %v, want %d", size, err, len(content))
			}
			if err := s.Delete(t.Context(), []string{key}); err != nil {
				t.Error(err)
			}
			if _, err := s.Size(t.Context(), key); !errors.Is(err, objects.ErrNotFound) {
				t.Errorf("after the deletion: %v, want ErrNotFound", err)
			}
		})
	}
	t.Run("cut bodies", func(t *testing.T) {
		bucket := newBucket(t)
		publish(t, openStore(t, bucket), key, content)
		cut, proxy, err := s3.Proxy(bucket, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
			if !strings.HasSuffix(req.URL.Path, key) {
				forward(w, req)
				return
			}
			answer := httptest.NewRecorder()
			forward(answer, req)
			for name, values := range answer.Header() {
				w.Header()[name] = values
			}
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes()[:answer.Body.Len()/2])
			panic(http.ErrAbortHandler)
		})
		if err != nil {
			t.Fatal(err)
		}
		defer proxy.Close()
		if b, err := read(t.Context(), openStore(t, cut), key); err == nil {
			t.Errorf("read %d of %d bytes without an error", len(b), len(content))
		}
	})
	t.Run("hangs", func(t *testing.T) {
		bucket, proxy, err := s3.Proxy(newBucket(t), func(w http.ResponseWriter, req *http.Request,
			forward http.HandlerFunc) {
			if !strings.HasSuffix(req.URL.Path, key) {
				forward(w, req)
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			<-req.Context().Done()
		})
		if err != nil {
			t.Fatal(err)
		}
		defer proxy.Close()
		s := openStore(t, bucket)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := read(ctx, s, key); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("read from a server that hangs: %v, want DeadlineExceeded", err)
		}
	})
}

func publish(t *testing.T, s *objects.Store, key string, b []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "staged")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Publish(t.Context(), []objects.Staged{{Key: key, Path: path}}); err != nil {
		t.Fatal(err)
	}
}
