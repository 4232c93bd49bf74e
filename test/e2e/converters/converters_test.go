//go:build e2e || runtimes || peers

package converters

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"lighter/test/testkit/fswalk"
	"lighter/test/testkit/images"
	"lighter/test/testkit/referrers"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	tars "lighter/test/testkit/tarball"
	"lighter/test/testkit/workdir"
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// original is the image that the programs convert: the image base with odd layers.
var original = site.Reference("original")

// start starts a site with the original image in its registry, and returns the image's OCI layout,
// too. The node has no hub. It reads the images below lazy/ of the site's registry, and of others.
func start(t *testing.T, others ...referrers.Registry) (s *site.Site, layout string) {
	t.Helper()
	host, _, _ := strings.Cut(original, "/")
	config := filepath.Join(t.TempDir(), "node.toml")
	direct := fmt.Sprintf("%q", host+"/lazy/*")
	for _, other := range others {
		direct += fmt.Sprintf(", %q", other.Host+"/lazy/*")
	}
	text := "hubs = []\ndirect = [" + direct + "]\n" + site.RegistryTable + "plain_http = true\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	s = sitetest.Start(t, site.Options{Lighter: lighter, Hubs: []string{}, NodeArgs: []string{"--config", config}})
	layout = filepath.Join(s.Dir, "original") // Podman takes no path with capital letters, as t.TempDir has
	odd(t, layout)
	if err := s.Push(t.Context(), layout, "original"); err != nil {
		t.Fatal(err)
	}
	return s, layout
}

// odd makes an OCI layout of the image base and two layers, which have every kind of entry that all
// converters take.
func odd(t *testing.T, dir string) {
	t.Helper()
	image, err := images.Open(images.Dir("base"))
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Write(dir, "latest", onTop(t, onTop(t, image, lower()...), upper()...)); err != nil {
		t.Fatal(err)
	}
}

// onTop returns an image with one more layer.
func onTop(t *testing.T, image v1.Image, items ...tars.Item) v1.Image {
	t.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(tars.Of(items...))), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err == nil {
		image, err = mutate.AppendLayers(image, layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// large is the content of a file of several chunks in each format. It does not compress.
var large = func() string {
	b := make([]byte, 9<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return string(b)
}()

func lower() []tars.Item {
	long := strings.Repeat("long", 63)
	// cap_net_raw is permitted and effective.
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	return []tars.Item{
		tars.Dir("odd", tars.Mode(0o2750), tars.Owner(7, 8), tars.Time(1_500_000_000, 0)),
		tars.File("odd/empty", ""), tars.File("odd/setuid", "text", tars.Mode(0o4755)),
		tars.File("odd/setgid", "text", tars.Mode(0o2711), tars.Owner(1000, 4294967294)),
		tars.Dir("odd/sticky", tars.Mode(0o1777)), tars.Dir("odd/a"), tars.Dir("odd/a/b"),
		tars.File("odd/nanoseconds", "text", tars.Time(1_500_000_000, 123_456_789)),
		tars.File("odd/original", "linked"), tars.Link("odd/a/b/link", "odd/original"),
		tars.Link("odd/z", "odd/a/b/link"),
		tars.Symlink("odd/symlink", "a/b/link"), tars.Symlink("odd/dangling", "/no/such/file", tars.Owner(3, 4)),
		tars.Char("odd/char", 1, 3), tars.Block("odd/block", 7, 260), tars.FIFO("odd/fifo", tars.Mode(0o622)),
		tars.File("odd/xattrs", "text", tars.Xattr("user.text", "1"), tars.Xattr("user.binary", "\x00\xff\n"),
			tars.Xattr("security.capability", capability)),
		tars.Dir("odd/dir-xattr", tars.Xattr("user.dir", "2")),
		tars.File("odd/"+long, "long name"), tars.Dir("odd/" + strings.Repeat("deep/", 60)),
		tars.File("odd/"+strings.Repeat("deep/", 60)+"file", "deep"),
		tars.Symlink("odd/far", strings.Repeat("far/", 200)),
		tars.File("odd/names ü \t\"\\ *", "text"), tars.File("odd/large", large),
		tars.File("odd/zeros", string(make([]byte, 3<<20))+"end"),
		tars.File("odd/removed", "text"), tars.Dir("odd/removed-dir"), tars.File("odd/removed-dir/file", "text"),
		tars.Dir("odd/opaque"), tars.File("odd/opaque/hidden", "text"), tars.File("odd/file-to-dir", "text"),
		tars.Dir("odd/dir-to-file"), tars.File("odd/dir-to-file/gone", "text"), tars.File("odd/grown", "text"),
		tars.File("odd/kept", "text"), tars.File("no/parent/entry", "text"),
	}
}

func upper() []tars.Item {
	return []tars.Item{
		tars.Whiteout("odd/removed"), tars.Whiteout("odd/removed-dir"), tars.Whiteout("usr/share/doc"),
		tars.Dir("odd/opaque", tars.Mode(0o700)), tars.Opaque("odd/opaque"), tars.File("odd/opaque/shown", "text"),
		tars.Dir("odd/file-to-dir"), tars.File("odd/file-to-dir/new", "text"), tars.File("odd/dir-to-file", "text"),
		tars.File("odd/grown", large[:5<<20]), tars.Link("odd/grown-link", "odd/grown"),
		tars.File("odd/original", "no longer linked"), tars.Dir("odd/a/new", tars.Owner(5, 6)),
	}
}

// do runs a command, and returns what it printed.
func do(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// tool returns the path of a program that test/setup has built.
func tool(t *testing.T, name string) string {
	t.Helper()
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(work, site.Ours, name)
}

// tree lists an image's files, as they are with a snapshotter.
func tree(t *testing.T, s *site.Site, snapshotter, ref string) fswalk.Listing {
	t.Helper()
	c, err := s.Machine.StartContainer(t.Context(), snapshotter, ref, "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	root, unmount, err := c.View(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	listing, err := fswalk.Walk(root)
	if err := errors.Join(err, unmount(), c.Remove(t.Context())); err != nil {
		t.Fatal(err)
	}
	return listing
}

// A loss is what a format does not have of an image, compared with its tar.
type loss func(path string, unpacked *fswalk.Entry) (absent bool)

// nothing is lost.
func nothing(string, *fswalk.Entry) bool { return false }

// The tables of stargz' converter have times in seconds, and not the files of the format.
func stargzLoss(path string, e *fswalk.Entry) (absent bool) {
	at := time.Unix(e.Sec, e.Nsec).Round(time.Second)
	e.Sec, e.Nsec = at.Unix(), 0
	return isOfStargz(path)
}

// isOfStargz reports whether a file of the tar is one of the format.
func isOfStargz(path string) bool {
	return path == "stargz.index.json" || path == ".prefetch.landmark" || path == ".no.prefetch.landmark"
}

// startsLazily pulls and runs an image with Lighter. The pull may receive limit bytes.
func startsLazily(t *testing.T, s *site.Site, ref string, limit int64, lost loss) {
	t.Helper()
	compared(t, s, site.Lighter, ref, limit, lost)
	if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
}

// pulledAsUsual pulls an image, which is not lazy. The node's log says why.
func pulledAsUsual(t *testing.T, s *site.Site, ref, reason string) {
	t.Helper()
	moved := images.Received(t, s, func() {
		if _, err := s.Machine.Pull(t.Context(), site.Lighter, ref); err != nil {
			t.Fatal(err)
		}
	})
	if st := sitetest.Status(t, s); moved < images.Size(t, "base")/2 || len(st.Images) != 1 || st.Images[0].Lazy {
		t.Errorf("%s: the pull received %d bytes, want the whole image; images %+v", ref, moved, st.Images)
	}
	log, err := os.ReadFile(s.Machine.NodeLog())
	if err != nil {
		t.Fatal(err)
	}
	_, said, found := strings.Cut(string(log), "image="+ref+" err=")
	if said, _, _ = strings.Cut(said, "\n"); !found || !strings.Contains(said, reason) {
		t.Errorf("the node's log says %s: want that %s is not lazy because of %q", said, ref, reason)
	}
	ran, err := s.Machine.Run(t.Context(), site.Lighter, ref, "cat", "/odd/xattrs")
	if err != nil || ran.Output != "text" {
		t.Errorf("%s: got %q, %v", ref, ran.Output, err)
	}
}

// compared pulls and runs an image, and compares all its files with those that overlayfs unpacks,
// except for what its format does not have. The pull may receive limit bytes.
func compared(t *testing.T, s *site.Site, snapshotter, ref string, limit int64, lost loss) {
	t.Helper()
	moved := images.Received(t, s, func() {
		if _, err := s.Machine.Pull(t.Context(), snapshotter, ref); err != nil {
			t.Fatal(err)
		}
	})
	if st := sitetest.Status(t, s); snapshotter == site.Lighter && (len(st.Images) != 1 || !st.Images[0].Lazy) {
		t.Errorf("%s: images %+v, want one that is lazy", ref, st.Images)
	}
	if moved > limit {
		t.Errorf("%s: the pull received %d bytes, want up to %d", ref, moved, limit)
	}
	lazy := tree(t, s, snapshotter, ref)
	began := time.Now().Unix()
	if _, err := s.Machine.Pull(t.Context(), site.Overlayfs, ref); err != nil {
		t.Fatal(err)
	}
	want := fswalk.Listing{}
	for path, e := range tree(t, s, site.Overlayfs, ref) {
		if !lost(path, &e) {
			want[path] = e
		}
	}
	// containerd gives some directories the time of unpacking: the root, and directories in which a
	// layer changes files without an entry for the directory itself.
	times := func(_ string, want, _ fswalk.Entry) bool { return !want.IsDir() || want.Sec < began-1 }
	for i, d := range fswalk.Diff(want, lazy, fswalk.Options{ComparesTime: times}) {
		if t.Errorf("%s: overlayfs and %s differ: %s", ref, snapshotter, d); i > 20 {
			break
		}
	}
	t.Logf("%s: the pull received %d bytes, %d entries compared", ref, moved, len(lazy))
}
