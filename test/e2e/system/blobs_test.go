//go:build e2e

package system

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	containerdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/node/front/containerd/blobs"
	"lighter/test/testkit/images"
	"lighter/test/testkit/pods"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
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
	st := sitetest.Status(t, s)
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

// A pull and a container fetch no layer, though containerd has them all. Nor does a push to another
// repository of the same registry. A push to another registry fetches them. An export writes an
// archive with every blob. Another namespace runs both on overlayfs. When the images are removed,
// nothing is left.
func TestLayersAreFetchedWhenTheyAreRead(t *testing.T) {
	s := startBlobs(t, site.Options{}, "+base")
	ref := site.Reference("base")
	prints := func(namespace, snapshotter, ref string) {
		t.Helper()
		out := ctrIn(t, s, namespace, "run", "--rm", "--snapshotter", snapshotter, ref, "c", "echo", "hello")
		if out != "hello\n" {
			t.Errorf("echo printed %q, want hello", out)
		}
	}
	moved := images.Received(t, s, func() {
		pullBlobs(t, s, "base")
		prints(blobsNamespace, site.Lighter, ref)
	})
	if moved > 10<<20 {
		t.Errorf("the pull and the container received %d bytes, want at most 10 MiB", moved)
	}
	layers := links(t, s)
	if st := blobsStatus(t, s); st.Fetched != 0 || st.Links == 0 || st.Links != len(layers) || st.Problem != "" {
		t.Errorf("after the container: %+v, and links %v; want links and no fetched layer", st, layers)
	}
	other := strings.Replace(ref, "base", "copied/base", 1)
	ctrIn(t, s, blobsNamespace, "images", "push", "--plain-http", other, ref)
	if st := blobsStatus(t, s); st.Fetched != 0 || st.Links == 0 {
		t.Errorf("after the push to the same registry: %+v, want links: the registry has the layers", st)
	}
	hub := strings.TrimPrefix(s.Hub.URL, "http://")
	ctrIn(t, s, blobsNamespace, "images", "push", "--plain-http", hub+"/copied/base:2", ref)
	st := blobsStatus(t, s)
	if st.Fetched != int64(len(layers)) || st.Links != 0 || st.Failures != 0 {
		t.Errorf("after the push to another registry: %+v, want %d fetched layers and no link", st, len(layers))
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	ctrIn(t, s, blobsNamespace, "images", "export", archive, ref)
	checkBlobs(t, s)
	ctrIn(t, s, blobsNamespace, "images", "rm", "--sync", ref)

	ctrIn(t, s, "fresh", "images", "import", "--snapshotter", site.Overlayfs, archive)
	prints("fresh", site.Overlayfs, ref)
	ctrIn(t, s, "fresh", "images", "rm", "--sync", ref)
	ctrIn(t, s, "fresh", "images", "pull", "--plain-http", "--snapshotter", site.Overlayfs, other)
	prints("fresh", site.Overlayfs, other)
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

// exports tries to export an image from blobsNamespace.
func exports(t testing.TB, s *site.Site, ref string) error {
	t.Helper()
	_, err := s.Machine.CtrIn(t.Context(), blobsNamespace, "images", "export", filepath.Join(t.TempDir(), "x.tar"), ref)
	return err
}

// While no hub or no node runs, readers of a layer get an error and do not wait for long. When both
// run again, the layer can be read. Without a node, containerd works on: it downloads the layer for
// another image, and then the first image has it, too.
func TestLayersWithoutHubOrNode(t *testing.T) {
	s := startBlobs(t, site.Options{}, "+base", "python")
	ref := site.Reference("base")
	pullBlobs(t, s, "base")

	s.Hub.Kill()
	if err := exports(t, s, ref); err == nil {
		t.Error("an export without a hub succeeds, want an error")
	}
	if st := blobsStatus(t, s); st.Failures == 0 || !strings.Contains(st.Failure, "refused") || st.Links == 0 {
		t.Errorf("without a hub: %+v, want a failure that says why, and links", st)
	}
	if left, err := os.ReadDir(filepath.Join(filepath.Dir(filepath.Dir(blobsDir(s))), "lighter")); len(left) > 0 {
		t.Errorf("unfinished layers: %v, %v; want none", left, err)
	}
	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for what, end := range map[string]func() error{"stopped": s.Machine.StopNode,
		"killed": func() error { s.Machine.KillNode(); return nil }} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := exports(t, s, ref); err == nil {
			t.Errorf("the node is %s, and an export succeeds, want an error", what)
		}
		if err := s.Machine.StartNode(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := exports(t, s, ref); err != nil {
		t.Error(err)
	}
	if st := blobsStatus(t, s); st.Fetched == 0 || st.Links != 0 {
		t.Errorf("after an export: %+v, want fetched layers and no link", st)
	}

	ctrIn(t, s, blobsNamespace, "images", "rm", "--sync", ref)
	reconnect(t, s)
	pullBlobs(t, s, "base")
	s.Machine.KillNode()
	ctrIn(t, s, "other", "images", "pull", "--plain-http", "--snapshotter", site.Overlayfs, site.Reference("python"))
	if err := exports(t, s, ref); err != nil {
		t.Error(err)
	}
	checkBlobs(t, s)
	if err := s.Machine.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// If the hub does not have a layer any more, its reader gets an error, and containerd knows that it
// lacks the layer: a pull with another snapshotter downloads it.
func TestLayerIsRemovedFromTheHub(t *testing.T) {
	s := startBlobs(t, site.Options{}, "+base")
	ref := site.Reference("base")
	pullBlobs(t, s, "base")
	if out, err := s.Hub.Lighter(t.Context(), "rm", "base:latest"); err != nil {
		t.Fatalf("lighter rm: %v: %s", err, out)
	}
	if err := exports(t, s, ref); err == nil {
		t.Error("an export without the hub's image succeeds, want an error")
	}
	if left := links(t, s); len(left) > 0 {
		t.Errorf("got links %v, want none", left)
	}
	ctrIn(t, s, blobsNamespace, "images", "pull", "--plain-http", "--snapshotter", site.Overlayfs, ref)
	out := ctrIn(t, s, blobsNamespace, "run", "--rm", "--snapshotter", site.Overlayfs, ref, "c", "echo", "hello")
	if out != "hello\n" {
		t.Errorf("echo printed %q, want hello", out)
	}
}

// If the setting is taken back, or the node is released, no link is left, and containerd knows that
// it lacks the layers: a pull with another snapshotter downloads them.
func TestLinksAreRemoved(t *testing.T) {
	s := startBlobs(t, site.Options{}, "+base")
	ref := site.Reference("base")
	for what, remove := range map[string]func() error{
		"taken back": func() error {
			s.SetNodeArgs()
			return s.Machine.StartNode(t.Context())
		},
		"released": func() error {
			_, err := s.Machine.Lighter(t.Context(), "release")
			return err
		},
	} {
		pullBlobs(t, s, "base")
		if len(links(t, s)) == 0 {
			t.Fatal("no link after the pull, want some")
		}
		if err := s.Machine.StopNode(); err != nil {
			t.Fatal(err)
		}
		if err := remove(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for try := 0; len(links(t, s)) > 0 && try < 200; try++ {
			time.Sleep(50 * time.Millisecond)
		}
		if left := links(t, s); len(left) > 0 {
			t.Errorf("%s: links %v are left, want none", what, left)
		}
		ctrIn(t, s, blobsNamespace, "images", "pull", "--plain-http", "--snapshotter", site.Overlayfs, ref)
		out := ctrIn(t, s, blobsNamespace, "run", "--rm", "--snapshotter", site.Overlayfs, ref, "c", "echo", "hello")
		if out != "hello\n" {
			t.Errorf("%s: echo printed %q, want hello", what, out)
		}
		ctrIn(t, s, blobsNamespace, "images", "rm", "--sync", ref)
		if s.Machine.NodeRuns() {
			if err := s.Machine.StopNode(); err != nil {
				t.Fatal(err)
			}
		}
		s.SetNodeArgs("--blob-namespaces", blobsNamespace)
		if err := s.Machine.StartNode(t.Context()); err != nil {
			t.Fatal(err)
		}
		reconnect(t, s)
	}
}

// A containerd that shares no content between namespaces gets no links: pulls are lazy as before,
// and the status says why.
func TestIsolatedContentHasNoLinks(t *testing.T) {
	s := startBlobs(t, site.Options{Isolated: true}, "+base")
	ref := site.Reference("base")
	ctrIn(t, s, blobsNamespace, "images", "pull", "--plain-http", "--snapshotter", site.Lighter, ref)
	out := ctrIn(t, s, blobsNamespace, "run", "--rm", "--snapshotter", site.Lighter, ref, "c", "echo", "hello")
	if out != "hello\n" {
		t.Errorf("echo printed %q, want hello", out)
	}
	if left := links(t, s); len(left) > 0 {
		t.Errorf("got links %v, want none", left)
	}
	if st := blobsStatus(t, s); !strings.Contains(st.Problem, "isolated") {
		t.Errorf("got %+v, want the problem", st)
	}
}

// An image that was made on a lazy image is exported as a whole, also after the lazy image was
// removed.
func TestImageOnALazyImageIsExported(t *testing.T) {
	s := startBlobs(t, site.Options{}, "+base")
	pullBlobs(t, s, "base")
	const ref = "registry.test/derived:1"
	derive(t, s, site.Reference("base"), ref)
	ctrIn(t, s, blobsNamespace, "images", "rm", "--sync", site.Reference("base"))
	archive := filepath.Join(t.TempDir(), "image.tar")
	ctrIn(t, s, blobsNamespace, "images", "export", archive, ref)
	ctrIn(t, s, "fresh", "images", "import", "--snapshotter", site.Overlayfs, archive)
	out := ctrIn(t, s, "fresh", "run", "--rm", "--snapshotter", site.Overlayfs, ref, "c", "cat", "/derived")
	if out != "derived" {
		t.Errorf("the imported image has %q, want derived", out)
	}
}

// derive makes an image with one more layer, as a builder does.
func derive(t testing.TB, s *site.Site, base, ref string) {
	t.Helper()
	client, err := containerd.New(s.Machine.ContainerdSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, done, err := client.WithLease(namespaces.WithNamespace(t.Context(), blobsNamespace))
	if err != nil {
		t.Fatal(err)
	}
	defer done(ctx)
	store := client.ContentStore()
	from, err := client.GetImage(ctx, base)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := containerdimages.Manifest(ctx, store, from.Target(), from.Platform())
	if err != nil {
		t.Fatal(err)
	}
	config, err := from.Spec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	put := func(mediaType string, text []byte, labels map[string]string) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}
		if err := content.WriteBlob(ctx, store, d.Digest.String(), bytes.NewReader(text), d,
			content.WithLabels(labels)); err != nil {
			t.Fatal(err)
		}
		return d
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Name: "derived", Mode: 0o644, Size: 7}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("derived")); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	top := put(ocispec.MediaTypeImageLayer, layer.Bytes(), nil)
	manifest.Layers = append(manifest.Layers, top)
	config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, top.Digest)
	text, _ := json.Marshal(config)
	manifest.Config = put(ocispec.MediaTypeImageConfig, text, nil)
	refs := map[string]string{"containerd.io/gc.ref.content.config": manifest.Config.Digest.String()}
	for i, l := range manifest.Layers {
		refs[fmt.Sprintf("containerd.io/gc.ref.content.l.%d", i)] = l.Digest.String()
	}
	manifest.MediaType = ocispec.MediaTypeImageManifest
	text, _ = json.Marshal(manifest)
	target := put(ocispec.MediaTypeImageManifest, text, refs)
	if _, err := client.ImageService().Create(ctx, containerdimages.Image{Name: ref, Target: target}); err != nil {
		t.Fatal(err)
	}
}

// Debian's containerd (1.6) takes the links over, too.
func TestLayersInDebiansContainerd(t *testing.T) {
	s := start(t, site.Options{Containerd: site.Debian, Config: shipped(t, "config-1.6.toml"),
		NodeArgs: []string{"--blob-namespaces", "k8s.io"}}, "+base")
	ref := site.Reference("base")
	moved := images.Received(t, s, func() { pods.Pull(t, s, ref, "") })
	if moved > 3<<20 || len(links(t, s)) == 0 {
		t.Errorf("the pull received %d bytes, and left links %v; want at most 3 MiB, and links", moved, links(t, s))
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	ctrIn(t, s, "k8s.io", "images", "export", archive, ref)
	if st := blobsStatus(t, s); st.Fetched == 0 || st.Links != 0 || st.Failures != 0 {
		t.Errorf("after the export: %+v, want fetched layers and no link", st)
	}
	checkBlobs(t, s)
	ctrIn(t, s, "fresh", "images", "import", "--snapshotter", site.Overlayfs, archive)
	out := ctrIn(t, s, "fresh", "run", "--rm", "--cgroup", cgroup(t, s), "--snapshotter", site.Overlayfs, ref, "c",
		"echo", "hello")
	if out != "hello\n" {
		t.Errorf("the imported image printed %q, want hello", out)
	}
}
