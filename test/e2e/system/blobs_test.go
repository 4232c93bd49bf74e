//go:build e2e

package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/node/front/containerd/blobs"
	"lighter/test/testkit/site"
)

// blobsNamespace is the namespace of containerd that has the layers of lazy images.
const blobsNamespace = "blobs"

func startBlobs(t testing.TB, options site.Options, images ...string) *site.Site {
	t.Helper()
	options.NodeArgs = append(options.NodeArgs, "--blob-namespaces", blobsNamespace)
	return start(t, options, images...)
}

// ctrIn runs ctr in a namespace.
func ctrIn(t testing.TB, s *site.Site, namespace string, args ...string) string {
	t.Helper()
	out, err := s.Machine.CtrIn(t.Context(), namespace, args...)
	if err != nil {
		t.Fatalf("ctr %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// pullBlobs pulls an image lazily into blobsNamespace, and waits until all its layers have links.
func pullBlobs(t testing.TB, s *site.Site, name string) {
	t.Helper()
	ctrIn(t, s, blobsNamespace, "images", "pull", "--plain-http", "--snapshotter", site.Lighter, site.Reference(name))
	awaitBlobs(t, s, name)
}

func awaitBlobs(t testing.TB, s *site.Site, name string) {
	t.Helper()
	var out string
	for range 300 {
		out = ctrIn(t, s, blobsNamespace, "images", "check", "name=="+site.Reference(name))
		if strings.Contains(out, "complete (") {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("containerd does not have all layers of %s: %s", name, out)
}

// blobsStatus returns the state of the node's layers.
func blobsStatus(t testing.TB, s *site.Site) blobs.Status {
	t.Helper()
	st := status(t, s)
	if st.Blobs == nil {
		t.Fatal("the status has no blobs")
	}
	return *st.Blobs
}

// blobsDir is the directory of containerd's blobs.
func blobsDir(s *site.Site) string {
	return filepath.Join(s.Dir, "machine/containerd/io.containerd.content.v1.content/blobs/sha256")
}

// links returns the names of the links in containerd's content store.
func links(t testing.TB, s *site.Site) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(blobsDir(s))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Type()&os.ModeSymlink != 0 {
			names = append(names, entry.Name())
		}
	}
	return names
}

// A pull and a container fetch no layer, though containerd has them all. An export fetches them:
// the archive has every blob, and another namespace imports it and runs it on overlayfs. The image
// is pushed to another repository, from which it can be pulled as a whole. When the image is
// removed, nothing is left.
func TestLayersAreFetchedWhenTheyAreRead(t *testing.T) {
	s := startBlobs(t, site.Options{}, "+python")
	ref := site.Reference("python")
	moved := received(t, s, func() {
		pullBlobs(t, s, "python")
		out := ctrIn(t, s, blobsNamespace, "run", "--rm", "--snapshotter", site.Lighter, ref, "c", "echo", "hello")
		if out != "hello\n" {
			t.Errorf("echo printed %q, want hello", out)
		}
	})
	if moved > 10<<20 {
		t.Errorf("the pull and the container received %d bytes, want at most 10 MiB", moved)
	}
	if st := blobsStatus(t, s); st.Fetched != 0 || st.Links == 0 || st.Links != len(links(t, s)) || st.Problem != "" {
		t.Errorf("after the container: %+v, and links %v; want links and no fetched layer", st, links(t, s))
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	layers := int64(len(links(t, s)))
	ctrIn(t, s, blobsNamespace, "images", "export", archive, ref)
	if st := blobsStatus(t, s); st.Fetched != layers || st.Links != 0 || st.Failures != 0 {
		t.Errorf("after the export: %+v, want %d fetched layers and no link", st, layers)
	}
	checkBlobs(t, s)
	ctrIn(t, s, "fresh", "images", "import", "--snapshotter", site.Overlayfs, archive)
	out := ctrIn(t, s, "fresh", "run", "--rm", "--snapshotter", site.Overlayfs, ref, "c", "python3", "-c", "print(6*7)")
	if out != "42\n" {
		t.Errorf("the imported image printed %q, want 42", out)
	}
	other := strings.Replace(ref, "python", "copied/python", 1)
	ctrIn(t, s, blobsNamespace, "images", "push", "--plain-http", other, ref)
	for _, namespace := range []string{"fresh", blobsNamespace} {
		ctrIn(t, s, namespace, "images", "rm", "--sync", ref)
	}
	ctrIn(t, s, "fresh", "images", "pull", "--plain-http", "--snapshotter", site.Overlayfs, other)
	ctrIn(t, s, "fresh", "images", "rm", "--sync", other)
	if entries, err := os.ReadDir(blobsDir(s)); err != nil || len(entries) > 0 {
		t.Errorf("after the removal of all images, the content store has %v (%v), want nothing", entries, err)
	}
}

// checkBlobs checks that every file in containerd's content store has the digest of its name.
func checkBlobs(t testing.TB, s *site.Site) {
	t.Helper()
	out, err := s.Machine.Command(t.Context(), "sh", "-c",
		fmt.Sprintf("cd %s && for f in *; do echo $f' '$f; done | sha256sum --check --quiet", blobsDir(s)))
	if err != nil {
		t.Errorf("blobs have other digests than their names: %v: %s", err, out)
	}
}

// Layers that were not fetched are pushed, too, straight after the pull.
func TestLazyImageIsPushed(t *testing.T) {
	s := startBlobs(t, site.Options{}, "+base")
	pullBlobs(t, s, "base")
	ref := site.Reference("base")
	other := strings.Replace(ref, "base", "copied/base", 1)
	ctrIn(t, s, blobsNamespace, "images", "push", "--plain-http", other, ref)
	ctrIn(t, s, "fresh", "images", "pull", "--plain-http", "--snapshotter", site.Overlayfs, other)
	out := ctrIn(t, s, "fresh", "run", "--rm", "--snapshotter", site.Overlayfs, other, "c", "echo", "hello")
	if out != "hello\n" {
		t.Errorf("the pushed image printed %q, want hello", out)
	}
}
