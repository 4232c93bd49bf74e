package sitetest

import (
	"errors"
	"testing"
	"time"

	"lighter/test/testkit/fswalk"
	"lighter/test/testkit/site"
)

// Unpacked has the files of an image as containerd's overlayfs unpacks them.
type Unpacked struct {
	files fswalk.Listing
	began int64 // when containerd began to unpack, in seconds since 1970
}

// A Loss changes an entry that was unpacked to what another format has of it, or reports that the
// format does not have it.
type Loss func(path string, unpacked *fswalk.Entry) (absent bool)

// StargzFiles is the Loss of an image whose layers have files that belong to eStargz.
func StargzFiles(path string, _ *fswalk.Entry) (absent bool) {
	return path == "stargz.index.json" || path == ".prefetch.landmark" || path == ".no.prefetch.landmark"
}

// Unpack pulls an image with overlayfs, for the first time, and reads all its files.
func Unpack(tb testing.TB, s *site.Site, ref string) Unpacked {
	tb.Helper()
	u := Unpacked{began: time.Now().Unix()}
	if _, err := s.Machine.Pull(tb.Context(), site.Overlayfs, ref); err != nil {
		tb.Fatal(err)
	}
	u.files = files(tb, s, site.Overlayfs, ref)
	return u
}

// Compare compares all files of an image that was pulled with another snapshotter, entry by entry.
// The test fails if they differ, except for what is lost; nil: nothing.
func (u Unpacked) Compare(tb testing.TB, s *site.Site, snapshotter, ref string, lost Loss) {
	tb.Helper()
	want := fswalk.Listing{}
	for path, e := range u.files {
		if lost == nil || !lost(path, &e) {
			want[path] = e
		}
	}
	got := files(tb, s, snapshotter, ref)
	// containerd gives some directories the time of unpacking: the root, and directories in which a
	// layer changes files without an entry for the directory itself.
	times := func(_ string, want, _ fswalk.Entry) bool { return !want.IsDir() || want.Sec < u.began-1 }
	for i, d := range fswalk.Diff(want, got, fswalk.Options{ComparesTime: times}) {
		if tb.Errorf("%s: overlayfs and %s differ: %s", ref, snapshotter, d); i > 20 {
			break
		}
	}
	tb.Logf("%s: %d entries compared", ref, len(got))
}

// files reads all files of an image, as a container finds them with a snapshotter.
func files(tb testing.TB, s *site.Site, snapshotter, ref string) fswalk.Listing {
	tb.Helper()
	c, err := s.Machine.StartContainer(tb.Context(), snapshotter, ref, "sleep", "infinity")
	if err != nil {
		tb.Fatal(err)
	}
	root, unmount, err := c.View(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	listing, err := fswalk.Walk(root)
	if err := errors.Join(err, unmount(), c.Remove(tb.Context())); err != nil {
		tb.Fatal(err)
	}
	return listing
}
