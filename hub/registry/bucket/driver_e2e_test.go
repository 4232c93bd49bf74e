//go:build e2e

package bucket

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/base"
	"github.com/distribution/distribution/v3/registry/storage/driver/testsuites"
	"golang.org/x/sync/errgroup"

	"lighter/test/testkit/s3"
)

var server *s3.Server

// TestMain starts the S3 server. The library's suite writes files of 5 GB only if LIGHTER_SOAK is
// set.
func TestMain(m *testing.M) {
	flag.Parse()
	err := flag.Set("test.short", strconv.FormatBool(os.Getenv("LIGHTER_SOAK") == ""))
	if err != nil {
		panic(err)
	}
	if server, err = s3.New(); err != nil {
		panic(err)
	}
	status := m.Run()
	server.Close()
	os.Exit(status)
}

func open(t *testing.T, n int) *files {
	t.Helper()
	return openPrefix(t, n, "")
}

// openPrefix opens the files below a prefix of a new bucket.
func openPrefix(t *testing.T, n int, prefix string) *files {
	t.Helper()
	url, err := server.Bucket(n)
	if err != nil {
		t.Fatal(err)
	}
	return openURL(t, url+"&prefix="+prefix)
}

// openFaulty opens the files of a new bucket through a faulty proxy.
func openFaulty(t *testing.T, n int, fault s3.Fault) *files {
	t.Helper()
	url, err := server.Bucket(n)
	if err != nil {
		t.Fatal(err)
	}
	through, proxy, err := s3.Proxy(url, fault)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	return openURL(t, through+"&stall_timeout=1s") // 15 s for copies
}

func openURL(t *testing.T, url string) *files {
	t.Helper()
	d, err := (opener{}).Create(t.Context(), map[string]any{"url": url})
	if err != nil {
		t.Fatal(err)
	}
	return d.(*Driver).files
}

// The driver passes the library's suite for storage drivers.
func TestDriver(t *testing.T) {
	f := open(t, 1)
	testsuites.Driver(t, func() (driver.StorageDriver, error) { return &base.Base{StorageDriver: f}, nil }, false)
}

func TestDriverOfAPrefix(t *testing.T) {
	f := openPrefix(t, 100, "domains/a/")
	testsuites.Driver(t, func() (driver.StorageDriver, error) { return &base.Base{StorageDriver: f}, nil }, false)
}

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, w driver.FileWriter, b []byte) {
	t.Helper()
	if n, err := w.Write(b); err != nil || n != len(b) {
		t.Fatalf("wrote %d bytes (%v), want %d", n, err, len(b))
	}
}

// If a writer ends without Close, as after kill -9, the next writer goes on with the file as the
// last Close left it.
func TestLostWriter(t *testing.T) {
	f := open(t, 2)
	first, lost, last := random(partSize+100, 1), random(2*partSize, 2), random(2*partSize+7, 3)
	w, err := f.Writer(t.Context(), "/uploads/a/data", false)
	must(t, err)
	write(t, w, first)
	must(t, w.Close())
	w, err = f.Writer(t.Context(), "/uploads/a/data", true)
	must(t, err)
	write(t, w, lost)
	w, err = f.Writer(t.Context(), "/uploads/a/data", true)
	must(t, err)
	if w.Size() != int64(len(first)) {
		t.Fatalf("size %d, want %d", w.Size(), len(first))
	}
	write(t, w, last)
	must(t, w.Commit(t.Context()))
	must(t, w.Close())
	got, err := f.GetContent(t.Context(), "/uploads/a/data")
	if err != nil || !bytes.Equal(got, append(first, last...)) {
		t.Errorf("read %d bytes (%v), want the bytes of the first and the last writer", len(got), err)
	}
	if names, err := f.List(t.Context(), "/uploads/a"); err != nil || len(names) != 1 {
		t.Errorf("files %v (%v), want only the committed one", names, err)
	}
}

// Delete of a directory ends the uploads in it, so that no parts stay in the bucket unseen. It does
// not end other uploads.
func TestDeleteEndsUploads(t *testing.T) {
	f := open(t, 3)
	for _, path := range []string{"/uploads/a/data", "/uploads/b/data", "/uploads/ab/data"} {
		w, err := f.Writer(t.Context(), path, false)
		must(t, err)
		write(t, w, random(partSize+1, 1))
		must(t, w.Close())
	}
	must(t, f.Delete(t.Context(), "/uploads/a"))
	w, err := f.Writer(t.Context(), "/uploads/b/data", true)
	must(t, err)
	must(t, w.Cancel(t.Context()))
	left, err := f.client.ListMultipartUploads(t.Context(), &awss3.ListMultipartUploadsInput{Bucket: &f.name})
	must(t, err)
	if len(left.Uploads) != 1 || aws.ToString(left.Uploads[0].Key) != "registry/uploads/ab/data" {
		t.Errorf("uploads %+v are left, want only that of /uploads/ab/data", left.Uploads)
	}
	if err := f.Delete(t.Context(), "/uploads/a"); !errors.As(err, new(driver.PathNotFoundError)) {
		t.Errorf("delete again: error %v, want PathNotFoundError", err)
	}
}

// DeleteFiles deletes files in several directories, and unfinished uploads of them. Other files and
// uploads stay.
func TestDeleteFiles(t *testing.T) {
	f := open(t, 31)
	d := &Driver{files: f}
	for _, path := range []string{"/blobs/a/data", "/blobs/b/data", "/blobs/c/data", "/others/a/data"} {
		must(t, f.PutContent(t.Context(), path, []byte("content")))
		_, err := f.beginUpload(t.Context(), f.key(path), "") // as a copy of a large file does
		must(t, err)
	}
	paths := []string{"/blobs/a/data", "/blobs/b/data", "/blobs/missing/data"}
	for range 2 { // it is no error that they are missing
		must(t, d.DeleteFiles(t.Context(), "/blobs", paths))
	}
	for path, want := range map[string]bool{
		"/blobs/a/data": false, "/blobs/b/data": false, "/blobs/c/data": true, "/others/a/data": true} {
		if _, err := f.Stat(t.Context(), path); (err == nil) != want {
			t.Errorf("%s: %v, want it to be left: %t", path, err, want)
		}
	}
	left, err := f.client.ListMultipartUploads(t.Context(), &awss3.ListMultipartUploadsInput{Bucket: &f.name})
	must(t, err)
	var keys []string
	for _, u := range left.Uploads {
		keys = append(keys, aws.ToString(u.Key))
	}
	slices.Sort(keys)
	if want := []string{"registry/blobs/c/data", "registry/others/a/data"}; !slices.Equal(keys, want) {
		t.Errorf("uploads of %q are left, want %q", keys, want)
	}
}

// If the server could not delete some of many files, that is an error, although it has answered.
func TestServerDeletesNotAllFiles(t *testing.T) {
	f := openFaulty(t, 32, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		if req.Method == http.MethodPost && req.URL.Query().Has("delete") {
			_, _ = io.WriteString(w,
				`<DeleteResult><Error><Key>registry/a/1</Key><Code>InternalError</Code></Error></DeleteResult>`)
			return
		}
		forward(w, req)
	})
	err := (&Driver{files: f}).DeleteFiles(t.Context(), "/a", []string{"/a/1", "/a/2"})
	if err == nil || !strings.Contains(err.Error(), "1 of 2 objects: registry/a/1: InternalError") {
		t.Errorf("delete files: %v, want an error that names the file that is left", err)
	}
}

// An object that is too large for one copy is copied in parts.
func TestMoveInParts(t *testing.T) {
	f := open(t, 4)
	f.copyAtOnce = 5 << 20
	content := random(12<<20, 1)
	must(t, f.PutContent(t.Context(), "/a/from", content))
	must(t, f.Move(t.Context(), "/a/from", "/b/to"))
	got, err := f.GetContent(t.Context(), "/b/to")
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("read %d bytes (%v), want the %d bytes of the moved file", len(got), err, len(content))
	}
	if _, err := f.Stat(t.Context(), "/a/from"); !errors.As(err, new(driver.PathNotFoundError)) {
		t.Errorf("the old file: error %v, want PathNotFoundError", err)
	}
}

// A write fails if its context ends, and nothing of it can be committed.
func TestWriteIsCancelled(t *testing.T) {
	f := open(t, 5)
	ctx, cancel := context.WithCancel(t.Context())
	w, err := f.Writer(ctx, "/a", false)
	must(t, err)
	cancel()
	if _, err := w.Write(random(partSize, 1)); err == nil {
		t.Error("wrote with a context that has ended, want an error")
	}
	if err := w.Commit(t.Context()); err == nil {
		t.Error("an incomplete file was committed, want an error")
	}
}

// Each request to a faulty server fails, hangs or is slow once. If it fails or hangs, it is made
// again, so files are written, moved, read and deleted as usual. Only an answer that is cut off
// while it is read is an error.
func TestFaultyServer(t *testing.T) {
	n := 20
	for name, fault := range s3.Faults {
		n++
		bucket := n
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			f := openFaulty(t, bucket, s3.First(fault))
			f.copyAtOnce = partSize
			content := random(2*partSize+100, 1)
			w, err := f.Writer(t.Context(), "/uploads/a/data", false)
			must(t, err)
			write(t, w, content[:partSize+50])
			must(t, w.Close())
			if w, err = f.Writer(t.Context(), "/uploads/a/data", true); err != nil && name == "cut" {
				w, err = f.Writer(t.Context(), "/uploads/a/data", true)
			}
			must(t, err)
			write(t, w, content[partSize+50:])
			must(t, w.Commit(t.Context()))
			must(t, w.Close())
			must(t, f.Move(t.Context(), "/uploads/a/data", "/blobs/large")) // in parts
			must(t, f.PutContent(t.Context(), "/blobs/small", content[:100]))
			must(t, f.Move(t.Context(), "/blobs/small", "/blobs/moved"))
			for path, want := range map[string][]byte{"/blobs/large": content, "/blobs/moved": content[:100]} {
				got, err := f.GetContent(t.Context(), path)
				if err != nil && name == "cut" {
					got, err = f.GetContent(t.Context(), path)
				}
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("read %d bytes of %s, %v, want %d", len(got), path, err, len(want))
				}
			}
			names, err := f.List(t.Context(), "/blobs")
			if slices.Sort(names); err != nil || !slices.Equal(names, []string{"/blobs/large", "/blobs/moved"}) {
				t.Errorf("files %v (%v), want /blobs/large and /blobs/moved", names, err)
			}
			must(t, f.Delete(t.Context(), "/blobs"))
			if names, err := f.List(t.Context(), "/"); err != nil || len(names) != 0 {
				t.Errorf("files %v (%v) after the deletion, want none", names, err)
			}
		})
	}
}

// If the answer to the completion of an upload is lost, the request is made again, and the server
// may know the upload no more. This is no error.
func TestAnswerOfCompletionIsLost(t *testing.T) {
	completed := 0
	f := openFaulty(t, 9, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		if req.Method != http.MethodPost || !req.URL.Query().Has("uploadId") {
			forward(w, req)
			return
		}
		if completed++; completed%2 == 1 {
			s3.Faults["lost"](w, req, forward)
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "<Error><Code>NoSuchUpload</Code></Error>")
	})
	f.copyAtOnce = partSize
	content := random(partSize+7, 1)
	w, err := f.Writer(t.Context(), "/uploads/a/data", false)
	must(t, err)
	write(t, w, content)
	must(t, w.Commit(t.Context()))
	must(t, f.Move(t.Context(), "/uploads/a/data", "/blobs/a"))
	if got, err := f.GetContent(t.Context(), "/blobs/a"); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(content))
	}
	if completed != 4 {
		t.Errorf("%d requests to complete two uploads, want 4", completed)
	}
}

// If a writer ends after it has completed a file and before it has deleted the rest, a later writer
// can commit the file.
func TestCommitIsInterrupted(t *testing.T) {
	f, content := open(t, 6), random(partSize+7, 1)
	w, err := f.Writer(t.Context(), "/uploads/a/data", false)
	must(t, err)
	write(t, w, content)
	must(t, w.Close())
	w, err = f.Writer(t.Context(), "/uploads/a/data", true)
	must(t, err)
	must(t, w.(*writer).store(t.Context()))
	w, err = f.Writer(t.Context(), "/uploads/a/data", true)
	must(t, err)
	if w.Size() != int64(len(content)) {
		t.Errorf("size %d, want %d", w.Size(), len(content))
	}
	if _, err := w.Write([]byte("more")); err == nil {
		t.Error("wrote more to a complete file, want an error")
	}
	must(t, w.Commit(t.Context()))
	must(t, w.Close())
	if got, err := f.GetContent(t.Context(), "/uploads/a/data"); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(content))
	}
	if names, err := f.List(t.Context(), "/uploads/a"); err != nil || len(names) != 1 {
		t.Errorf("files %v (%v), want only the committed one", names, err)
	}
}

// It is an error if an upload cannot be completed, even if the path has an object of the same size.
func TestAnotherObjectIsNotTheUpload(t *testing.T) {
	f := open(t, 7)
	for seed := range uint64(2) {
		w, err := f.Writer(t.Context(), "/a", false)
		must(t, err)
		write(t, w, random(partSize+7, seed))
		if seed == 1 { // as if it had expired
			must(t, w.(*writer).awaitPart())
			must(t, f.abortUpload(t.Context(), f.key("/a"), w.(*writer).Upload))
			if err := w.Commit(t.Context()); err == nil {
				t.Error("the commit of an upload that has ended succeeded, want an error")
			}
			return
		}
		must(t, w.Commit(t.Context()))
	}
}

// Walk visits the same files and directories as the library's walk, which makes a request for each
// of them. Walk makes a request for each 1,000 files.
func TestWalk(t *testing.T) {
	const uploads = 1200
	var lists atomic.Int64
	f := openFaulty(t, 10, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		if req.URL.Query().Get("list-type") == "2" {
			lists.Add(1)
		}
		forward(w, req)
	})
	paths := []string{"/a/b-c/_m/x", "/a/b/_l/y", "/a/b/_m/x", "/a/b.d/_m/x", "/a/b/e/_m/x", "/a/z", "/b/x"}
	for i := range uploads {
		paths = append(paths, fmt.Sprintf("/a/b/_uploads/%d", i))
	}
	var group errgroup.Group
	group.SetLimit(requestsAtOnce)
	for _, path := range paths {
		group.Go(func() error { return f.PutContent(t.Context(), path, []byte(path)) })
	}
	must(t, group.Wait())
	type seen struct {
		size  int64
		isDir bool
	}
	type walk func(context.Context, string, driver.WalkFn, ...func(*driver.WalkOptions)) error
	fallback := func(ctx context.Context, dir string, fn driver.WalkFn, o ...func(*driver.WalkOptions)) error {
		return driver.WalkFallback(ctx, f, dir, fn, o...)
	}
	visit := func(walk walk, dir, skipped string) map[string]seen {
		t.Helper()
		found := map[string]seen{}
		err := walk(t.Context(), dir, func(info driver.FileInfo) error {
			if _, again := found[info.Path()]; again {
				t.Errorf("%s was visited twice", info.Path())
			}
			if parent := path.Dir(info.Path()); parent != path.Clean(dir) && !found[parent].isDir {
				t.Errorf("%s was visited before its directory", info.Path())
			}
			found[info.Path()] = seen{info.Size(), info.IsDir()}
			if !info.IsDir() && info.ModTime().IsZero() {
				t.Errorf("%s has no time", info.Path())
			}
			if path.Base(info.Path()) == skipped {
				return driver.ErrSkipDir
			}
			return nil
		})
		must(t, err)
		return found
	}
	for _, c := range []struct {
		dir, skipped string
		requests     int64
	}{{"/", "", 2}, {"/a", "", 2}, {"/a/b", "", 2}, {"/a", "_uploads", 2}, {"/a", "b", 2}, {"/b", "", 1}} {
		lists.Store(0)
		got := visit(f.Walk, c.dir, c.skipped)
		if n := lists.Load(); n > c.requests {
			t.Errorf("a walk of %s took %d requests, want at most %d", c.dir, n, c.requests)
		}
		if want := visit(fallback, c.dir, c.skipped); !maps.Equal(got, want) {
			t.Errorf("a walk of %s without %q has visited %d files and directories, want the %d of the library's",
				c.dir, c.skipped, len(got), len(want))
		}
	}
	if err := f.Walk(t.Context(), "/none", func(driver.FileInfo) error { return nil }); !errors.As(err,
		new(driver.PathNotFoundError)) {
		t.Errorf("a walk of a directory that does not exist: error %v, want PathNotFoundError", err)
	}
	var visited []string
	must(t, f.Walk(t.Context(), "/a", func(info driver.FileInfo) error {
		if visited = append(visited, info.Path()); len(visited) == 4 {
			return driver.ErrFilledBuffer
		}
		return nil
	}, driver.WithStartAfterHint("/a/b/_uploads/999")))
	if want := []string{"/a/b", "/a/b/e", "/a/b/e/_m", "/a/b/e/_m/x"}; !slices.Equal(visited, want) {
		t.Errorf("a walk from a path on has visited %v, want %v", visited, want)
	}
	failed := errors.New("failed")
	if err := f.Walk(t.Context(), "/a", func(driver.FileInfo) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("a walk whose function fails: error %v, want that of the function", err)
	}
}
