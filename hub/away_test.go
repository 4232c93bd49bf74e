package hub_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/wire"
)

// If the bucket does not exist, or the file system of the directory is not mounted, no object
// counts as lost. When the store is back, everything is as before.
func TestStoreIsGone(t *testing.T) {
	t.Parallel()
	opened := openHub(t, hubConfig(t))
	opened.Jobs().RetryDelay = 10 * time.Millisecond
	h := runHub(t, opened)
	tree := h.pushReady("a:1", image(lowerTar, upperTar)).Tree
	h.wantClean("at first", "a:1")
	dir := objectsDir(h.config)
	before := files(t, dir)
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	isDir, because := h.config.Bucket == "", errors.New("there is no bucket")
	if isDir { // a mount point is empty
		because = errors.New("mount the file system of the objects")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	} else {
		h.expect("/v2/a/manifests/1", 503) // its files are in the bucket, too
	}
	h.expect("/lighter/1/default/indexes/"+tree, 503)
	jobs := map[string]int64{}
	for _, kind := range []string{"sweep", "scrub", "fsck"} {
		payload := []byte(`{"repair":true}`)
		n, err := h.Catalog().Jobs.Add(t.Context(), catalog.Job{Kind: kind, Key: "all objects", Payload: payload}, 0)
		if err != nil {
			t.Fatal(err)
		}
		jobs[kind] = n
	}
	verified := make(chan error, 1)
	go func() {
		last, err := h.client.Verify(t.Context(), "a:1", func(wire.Progress) {})
		if err == nil && len(last.Problems) > 0 {
			err = errors.New(strings.Join(last.Problems, "\n"))
		}
		verified <- err
	}()
	for _, kind := range []string{"sweep", "scrub", "fsck", "verify"} {
		h.awaitRetry(kind, because)
	}
	if isDir {
		if err := os.Remove(dir); err != nil {
			t.Errorf("the empty directory: %v, want nothing in it", err)
		}
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := <-verified; err != nil {
		t.Errorf("the verification: %v, want no problems", err)
	}
	h.wantClean("in the end", "a:1")
	for kind, n := range jobs {
		if j, err := h.Catalog().Jobs.Get(t.Context(), n); err != nil || j.State != wire.JobDone {
			t.Errorf("the %s is %s (%s, %v), want it done", kind, j.State, j.Error, err)
		}
	}
	for _, kind := range []string{"sweep", "scrub"} {
		if state, err := h.Catalog().Checks.Get(t.Context(), kind); err != nil || state.Errors > 0 {
			t.Errorf("the %s has found %d errors (%v), want none", kind, state.Errors, err)
		}
	}
	if got := files(t, dir); strings.Join(got, "\n") != strings.Join(before, "\n") {
		t.Errorf("files\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(before, "\n"))
	}
}

// However many requests fail until the registry's storage is back, the check does not fail, and
// finds nothing. The storage may come back between a read that fails and the question whether it is
// away.
func TestFsckBesideAReturn(t *testing.T) {
	t.Parallel()
	c, s3 := withS3(t)
	opened := openHub(t, c)
	opened.Jobs().RetryDelay = time.Millisecond
	opened.Jobs().ReadPauses = []time.Duration{time.Millisecond, time.Millisecond}
	h := runHub(t, opened)
	h.pushReady("a:1", image(lowerTar))
	for fail := range 12 {
		left := fail
		s3.refuse(func(req *http.Request) int {
			if !strings.Contains(req.URL.String(), "registry") || left == 0 {
				return 0
			}
			left--
			return http.StatusForbidden
		})
		h.wantClean(fmt.Sprintf("after %d requests that failed", fail), "a:1")
		if left > 0 {
			t.Fatalf("%d of %d requests were not made", left, fail)
		}
	}
}

// If most objects are missing, neither sweep nor scrub makes them again: the bucket may be the
// wrong one. A repair (lighter fsck) that a user requests makes them again.
func TestSweepSparesMostlyEmptyBucket(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.ScrubDays = 1 })
	for i := range 12 { // a scrub reads a quarter of the objects
		name := fmt.Sprintf("a:%d", i)
		h.pushReady(name, image(layer(uint64(i))))
	}
	h.idle()
	dir := objectsDir(h.config)
	lost := files(t, dir)
	for _, key := range lost {
		if err := os.Remove(filepath.Join(dir, key)); err != nil {
			t.Fatal(err)
		}
	}
	h = h.restart() // nothing is cached
	for _, kind := range []string{"sweep", "scrub"} {
		n, err := h.Catalog().Jobs.Add(t.Context(), catalog.Job{Kind: kind, Key: "all objects"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		h.idle()
		j, err := h.Catalog().Jobs.Get(t.Context(), n)
		if err != nil || j.State != wire.JobFailed || !strings.Contains(j.Error, "run lighter fsck") {
			t.Errorf("the %s is %s: %s (%v), want it failed, with a hint at lighter fsck", kind, j.State, j.Error, err)
		}
	}
	if check := h.fsck(wire.Fsck{}); check.Left() < int64(len(lost)/2) {
		t.Errorf("%d of %d objects are missing, want most of them", check.Left(), len(lost))
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 {
		t.Errorf("not repaired: %s", findings(check))
	}
	h.wantClean("after the repair", "a:0", "a:11")
}
