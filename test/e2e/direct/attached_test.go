//go:build e2e

package direct

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/format/index"
	"lighter/format/trace"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/test/testkit/tarball"
)

// makeKey makes a key file, and returns it with the public key.
func makeKey(t *testing.T) (file, public string) {
	t.Helper()
	key, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := index.EncodePrivateKeys([]ed25519.PrivateKey{private})
	file = filepath.Join(t.TempDir(), "key.pem")
	if err = errors.Join(err, os.WriteFile(file, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	return file, index.FormatKey(key)
}

// extended pushes the base image with one more layer, which has a file.
func extended(t *testing.T, s *site.Site, name, text string) (ref string) {
	t.Helper()
	return extendedOf(t, s, images.Dir("base"), name, text)
}

// extendedOf does the same with the image of another OCI layout.
func extendedOf(t *testing.T, s *site.Site, from, name, text string) (ref string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	err := layout.Extend(from, dir,
		func(l *layout.Layer) error { return l.File("opt/mine", []byte(text)) })
	if err == nil {
		err = s.Push(t.Context(), dir, name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return site.Reference(name)
}

// wantLazy returns an error unless the machine has one image, which is lazy or not.
func wantLazy(t *testing.T, s *site.Site, lazy bool) {
	t.Helper()
	if st := sitetest.Status(t, s); len(st.Images) != 1 || st.Images[0].Lazy != lazy {
		t.Errorf("images %+v, want one, and that it is lazy: %t", st.Images, lazy)
	}
}

// An unchanged image starts lazily once an index is attached to it, and has the same files as with
// overlayfs. After a restart of the node, what was read is served with the registry gone. An index
// of another key counts nothing.
func TestAttached(t *testing.T) {
	key, public := makeKey(t)
	s := startWith(t, site.Options{Hubs: []string{}}, "attached_keys = [\""+public+"\"]")
	ref := extended(t, s, "plain/mine", "mine")
	other, _ := makeKey(t)
	lighter(t, "attach", "--plain-http", "--key", other, ref)
	if moved := pull(t, s, ref); moved < images.Size(t, "base")/2 {
		t.Errorf("the pull with another key's index received %d bytes, want the whole image", moved)
	}
	wantLazy(t, s, false)
	if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	odd := filepath.Join(t.TempDir(), "odd") // has every kind of entry
	if err := images.Write(odd, "latest", images.Base(t, tarball.Kinds()...)); err != nil {
		t.Fatal(err)
	}
	second := extendedOf(t, s, odd, "plain/second", "second")
	if out := lighter(t, "attach", "--plain-http", "--key", key, second); !strings.Contains(out, public) {
		t.Errorf("attach printed %q, want the key", out)
	}
	if moved := pull(t, s, second); moved > images.Size(t, "base")/20 {
		t.Errorf("the pull received %d bytes, want the index only", moved)
	}
	wantLazy(t, s, true)
	if st := sitetest.Status(t, s); len(st.Images) == 1 && st.Images[0].Source.Source != "attached" {
		t.Errorf("the image's source is %+v, want the attached index", st.Images[0].Source)
	}
	compare(t, s, second)
	// An image without an index has a layer above the lowest one of that image.
	third := extended(t, s, "plain/third", "third")
	pull(t, s, third)
	if out := run(t, s, site.Lighter, third, "cat", "/opt/mine"); out != "third" {
		t.Errorf("an image above the lower layers: got %q", out)
	}
	compare(t, s, third)
	if err := s.StopRegistry(); err != nil {
		t.Fatal(err)
	}
	s.Machine.KillNode()
	err := errors.Join(s.Machine.StartNode(t.Context()), s.Machine.Reconnect(t.Context()), site.DropCaches())
	if err != nil {
		t.Fatal(err)
	}
	if out := run(t, s, site.Lighter, second, "cat", "/opt/mine"); out != "second" {
		t.Errorf("after a restart without the registry: got %q", out)
	}
}

// Traces become startup packs, which nodes fetch at once. Only these are made again if the image
// has an index already. An index that was removed is not found any more.
func TestAttachedStartupPacks(t *testing.T) {
	key, public := makeKey(t)
	s := startWith(t, site.Options{Hubs: []string{}}, "attached_keys = [\""+public+"\"]")
	ref := extended(t, s, "plain/mine", "mine")
	if out := lighter(t, "attach", "--plain-http", "--key", key, ref); !strings.Contains(out, ": attached") {
		t.Errorf("the first time: %q", out)
	}
	recording := trace.Recording{Starts: 1}
	for _, path := range []string{"/usr/bin/dash", "/usr/lib/x86_64-linux-gnu/libc.so.6"} {
		recording.Entries = append(recording.Entries, trace.Entry{Path: path, Length: 1 << 20})
	}
	file := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(file, trace.EncodeText([]trace.Recording{recording}), 0o600); err != nil {
		t.Fatal(err)
	}
	again := []string{"attach", "--plain-http", "--key", key, "--trace", file, ref}
	if out := lighter(t, again...); !strings.Contains(out, ": replaced") || !strings.Contains(out, "version 2") {
		t.Errorf("with traces: %q", out)
	}
	if out := lighter(t, again...); !strings.Contains(out, ": unchanged") {
		t.Errorf("once more: %q", out)
	}
	if out := lighter(t, "attach", "--plain-http", "--list", ref); strings.Count(out, "ed25519") != 1 {
		t.Errorf("the list is %q, want one index", out)
	}
	pull(t, s, ref)
	if out := run(t, s, site.Lighter, ref, "sh", "-c", hello); out != "hello\n" {
		t.Fatalf("got %q", out)
	}
	if st := sitetest.Status(t, s); st.Ahead.Startup.Fetched == 0 {
		t.Errorf("prefetched %+v, want the startup pack", st.Ahead)
	}
	if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	lighter(t, "attach", "--plain-http", "--remove", ref)
	if out := lighter(t, "attach", "--plain-http", "--list", ref); !strings.Contains(out, "no attached index") {
		t.Errorf("after the removal the list is %q", out)
	}
}

// A node without a hub records a start to a file, of which attach and export make what nodes fetch
// first. Without a file, it says that there is no hub to send the recording to.
func TestRecordedWithoutAHub(t *testing.T) {
	key, public := makeKey(t)
	s := startWith(t, site.Options{Hubs: []string{}}, "attached_keys = [\""+public+"\"]\nrecord = false")
	ref := extended(t, s, "plain/mine", "mine")
	lighter(t, "attach", "--plain-http", "--key", key, "--guess=false", ref)
	pull(t, s, ref)
	run(t, s, site.Lighter, ref, "true") // mounts it: the status counts recordings of mounted images
	program, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	record := func(args ...string) (string, error) {
		command := []string{program, "trace", "record", "--root", s.Machine.NodeRoot()}
		return s.Machine.Command(t.Context(), append(command, args...)...)
	}
	if out, err := record(ref); err == nil || !strings.Contains(err.Error(), "no hub") {
		t.Errorf("a recording for a hub: %v, %s", err, out)
	}
	file, recorded := filepath.Join(t.TempDir(), "trace"), make(chan error, 1)
	go func() {
		_, err := record("--output", file, ref)
		recorded <- err
	}()
	eventually.Holds(t, "a recording", func() bool { return sitetest.Status(t, s).Recording.Active == 1 })
	run(t, s, site.Lighter, ref, "perl", "-e", "1")
	if err := <-recorded; err != nil {
		t.Fatal(err)
	}
	if out := lighter(t, "attach", "--plain-http", "--key", key, "--guess=false", "--trace", file, ref); !strings.
		Contains(out, ": replaced") || strings.Contains(out, "packs of 0 B") {
		t.Errorf("attached with the recording: %q", out)
	}
	lighter(t, "export", "--format", "estargz", "--plain-http", "--source-plain-http", "--trace", file, "--to",
		"docker://"+site.Reference("lazy/mine"), ref)
}

// A repository with indexes by their chain serves as a hub without a process, for images in other
// repositories.
func TestAttachedByChain(t *testing.T) {
	key, public := makeKey(t)
	indexes := strings.TrimSuffix(site.Reference("indexes"), ":latest")
	s := startWith(t, site.Options{Hubs: []string{}},
		"attached_keys = [\""+public+"\"]\nattached_from = [\""+indexes+"\"]")
	ref := extended(t, s, "plain/mine", "mine")
	lighter(t, "attach", "--plain-http", "--key", key, "--to", indexes, ref)
	if moved := pull(t, s, ref); moved > images.Size(t, "base")/20 {
		t.Errorf("the pull received %d bytes, want the index only", moved)
	}
	wantLazy(t, s, true)
	if out := run(t, s, site.Lighter, ref, "cat", "/opt/mine"); out != "mine" {
		t.Errorf("got %q", out)
	}
}
