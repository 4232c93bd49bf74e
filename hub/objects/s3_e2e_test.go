//go:build e2e

package objects_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

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

// A store below a prefix of a bucket keeps the contract. It shares no objects with stores below
// other prefixes, or with a store of the whole bucket.
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
			t.Errorf("store %q lists %v after the first key, want %v", name, got, want)
		}
	}
}

// If the bucket was deleted, errors do not say that objects are missing.
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
		t.Errorf("object %s is left after the deletion", o.Key)
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
			t.Errorf("%s: error %v, want one that names the bucket", name, err)
		}
	}
}

// Each request to a faulty server fails, hangs or is slow once. If it fails or hangs, it is made
// again. Only an answer that is cut off while it is read is an error.
func TestFaultyS3(t *testing.T) {
	newBucket := openBuckets(t)
	content := make([]byte, 16<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	const key = "packs/one"
	for name, fault := range s3.Faults {
		t.Run(name, func(t *testing.T) {
			bucket, proxy, err := s3.Proxy(newBucket(t), s3.First(fault))
			if err != nil {
				t.Fatal(err)
			}
			defer proxy.Close()
			s := openStore(t, bucket+"&stall_timeout=1s")
			publish(t, s, key, content)
			b, err := read(t.Context(), s, key)
			if name == "cut" {
				if err == nil {
					t.Errorf("read %d of %d bytes without an error, want an error", len(b), len(content))
				}
				b, err = read(t.Context(), s, key)
			}
			if err != nil || !bytes.Equal(b, content) {
				t.Errorf("read %d bytes (%v), want the %d bytes of the object", len(b), err, len(content))
			}
			if size, err := s.Size(t.Context(), key); err != nil || size != int64(len(content)) {
				t.Errorf("size %d, %v, want %d", size, err, len(content))
			}
			for info, err := range s.List(t.Context(), "") {
				if err != nil || info.Key != key {
					t.Errorf("listed %s, %v, want %s", info.Key, err, key)
				}
			}
			if err := s.Delete(t.Context(), []string{key}); err != nil {
				t.Error(err)
			}
			if _, err := s.Size(t.Context(), key); !errors.Is(err, objects.ErrNotFound) {
				t.Errorf("after the deletion: %v, want ErrNotFound", err)
			}
		})
	}
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
