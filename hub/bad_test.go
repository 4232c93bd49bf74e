package hub_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/hub/rootdir"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// badImage is an image that cannot be ingested, with texts that the reason must mention.
type badImage struct {
	image   fakeImage
	reasons []string
}

func badImages() map[string]badImage {
	of := func(l fakeLayer) fakeImage { return fakeImage{layers: []fakeLayer{{tar: lowerTar}, l}} }
	second := "layer 2 of 2 (sha256:"
	other := digest.FromString("something else")
	return map[string]badImage{
		"another diffID": {of(fakeLayer{tar: upperTar, diffID: other}), []string{second, "diffID", other.String()}},
		"not gzip inside": {of(fakeLayer{tar: upperTar, blob: append([]byte{0x1f, 0x8b}, noise(7, 3000)...)}),
			[]string{second, "gzip"}},
		"gzip cut short": {of(fakeLayer{tar: upperTar, blob: gzipped(upperTar)[:5000]}),
			[]string{second, "unexpected EOF"}},
		"no tar": {of(fakeLayer{tar: []byte(strings.Repeat("not a tar stream ", 100))}),
			[]string{second, "tar"}},
		"tar cut short": {of(fakeLayer{tar: upperTar[:5000]}),
			[]string{second, `entry "etc/new"`, "unexpected EOF"}},
		"another size": {of(fakeLayer{tar: upperTar, size: 12}), []string{second, "the manifest says 12"}},
		"unknown media type": {of(fakeLayer{tar: upperTar, mediaType: "application/vnd.example.layer.v7"}),
			[]string{second, "application/vnd.example.layer.v7", "unknown"}},
		"foreign layer": {of(fakeLayer{tar: upperTar,
			mediaType: "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"}),
			[]string{second, "must not be copied"}},
		"zstd cut short": {of(fakeLayer{tar: upperTar, blob: zstded(upperTar)[:5000],
			mediaType: v1.MediaTypeImageLayerZstd}), []string{second, "unexpected EOF"}},
		"zstd damaged": {of(fakeLayer{tar: upperTar, blob: damaged(zstded(upperTar)),
			mediaType: v1.MediaTypeImageLayerZstd}), []string{second}},
		"a loop of hard links": {image(tarball.Of(tarball.Link("a", "b"), tarball.Link("b", "a"))),
			[]string{"layer 1 of 1 (sha256:", `entry "a"`, "no such file"}},
		"a hard link to nothing": {image(lowerTar, tarball.Of(tarball.Link("etc/link", "etc/nothing"))),
			[]string{second, `entry "etc/link"`, "no such file"}},
		"a refused name": {image(lowerTar, tarball.Of(tarball.File(strings.Repeat("n", 256), "x"))),
			[]string{second, `entry "nnn`, "name too long"}},
		"a negative size": {image(tarball.Of(tarball.File("a", "x", tarball.Claim(-5)))),
			[]string{"layer 1 of 1 (sha256:", "invalid tar header"}},
		"an absurd size": {image(tarball.Of(tarball.File("a", "x", tarball.Claim(1<<50)))),
			[]string{"layer 1 of 1 (sha256:", `entry "a"`}},
		"a file without data": {image(tarball.Of(tarball.File("a", "x", tarball.Claim(1<<20)))),
			[]string{"layer 1 of 1 (sha256:", `entry "a"`, "unexpected EOF"}},
		"too many bytes": {image(tarball.Of(tarball.File("a", noise(1, 2<<20)))),
			[]string{"layer 1 of 1 (sha256:", "more than the limit of 1048576 bytes"}},
		"too many entries": {image(tarball.Of(manyFiles(1001)...)),
			[]string{"layer 1 of 1 (sha256:", "more than the limit of 1000 entries"}},
		"too many in all": {image(tarball.Of(manyFiles(600)...), tarball.Of(manyFiles(600)...)),
			[]string{second, "more than the limit of 1000 entries"}},
		"a config that is not": {fakeImage{layers: image(lowerTar).layers, config: []byte("{]")},
			[]string{"config sha256:", "invalid character"}},
		"no diffIDs": {fakeImage{layers: image(lowerTar).layers,
			config: []byte(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers"}}`)},
			[]string{"has 0 diffIDs", "1 layers"}},
		"a diffID that is none": {fakeImage{layers: image(lowerTar).layers,
			config: []byte(`{"os":"linux","architecture":"amd64",` +
				`"rootfs":{"type":"layers","diff_ids":["sha256:12"]}}`)},
			[]string{"is not a diffID"}},
		"no layers": {image(), []string{"no layers"}},
		"a manifest that cannot be": {fakeImage{layers: image(lowerTar).layers,
			change: func(m *v1.Manifest) { m.Layers[0].Size = -1 }}, []string{"size -1"}},
	}
}

func zstded(b []byte) []byte {
	z, _ := zstd.NewWriter(nil) // its options are right
	return z.EncodeAll(b, nil)
}

// damaged flips a bit in the header of the first block of a zstd frame.
func damaged(b []byte) []byte {
	b = bytes.Clone(b)
	b[10] ^= 0x06
	return b
}

func manyFiles(n int) []tarball.Item {
	var items []tarball.Item
	for i := range n {
		items = append(items, tarball.File(fmt.Sprintf("f%d", i), "content"))
	}
	return items
}

// small configures low limits of images.
func small(c *hub.Config) { c.Limits.LayerBytes, c.Limits.Entries = 1<<20, 1000 }

// An image that cannot be ingested fails with a reason, and leaves nothing behind.
func TestBadImagesFailAndLeaveNothing(t *testing.T) {
	t.Parallel()
	h := startHub(t, small)
	h.pushReady("good:1", image(tarball.Of(tarball.File("a", noise(9, 60_000)))))
	before := h.holdings()
	for name, bad := range badImages() {
		repository := "bad/" + strings.ReplaceAll(name, " ", "-")
		repository = strings.ToLower(repository)
		h.push(repository+":1", bad.image)
		images := h.settled(repository + ":1")
		if len(images) != 1 || images[0].State != wire.StateFailed {
			t.Errorf("%s: %+v, want one failed image", name, images)
			continue
		}
		for _, want := range append(bad.reasons, "image "+repository+":1: ") {
			if !strings.Contains(images[0].Error, want) {
				t.Errorf("%s: the reason is %q, want it to mention %q", name, images[0].Error, want)
			}
		}
		if strings.Count(images[0].Error, "\n") > 0 {
			t.Errorf("%s: the reason has several lines: %q", name, images[0].Error)
		}
		h.unchanged(name, before)
		if _, err := h.add(wire.Add{Name: repository + ":1"}); err == nil ||
			!strings.Contains(err.Error(), bad.reasons[0]) {
			t.Errorf("%s, requested again: %v, want an error with %q", name, err, bad.reasons[0])
		}
		h.unchanged(name+", once more", before)
	}
	h.pushReady("good:2", image(lowerTar, upperTar))
}

// unchanged checks that the hub has the same objects and rows as before, and that neither scratch
// files nor uploads are left.
func (h *testHub) unchanged(what string, before holdings) {
	h.t.Helper()
	if now := h.holdings(); fmt.Sprint(now) != fmt.Sprint(before) {
		h.t.Errorf("%s: the hub has\n%v\nwant\n%v", what, now, before)
	}
	if left := files(h.t, rootdir.Scratch(h.config.Root)); len(left) > 0 {
		h.t.Errorf("%s: files in the scratch directory: %v, want none", what, left)
	}
	// A cancelled copy cleans up in the background.
	for range 500 {
		if h.uploads() == "" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.t.Errorf("%s: uploads in the registry: %s, want none", what, h.uploads())
}

// uploads lists the files of unfinished uploads to the registry.
func (h *testHub) uploads() string {
	left := slices.DeleteFunc(files(h.t, registryDir(h.config)),
		func(f string) bool { return !strings.Contains(f, "/_uploads/") })
	return strings.Join(left, " ")
}

func TestBadManifestsAreRefused(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	for mediaType, body := range map[string]string{
		v1.MediaTypeImageManifest: "{]",
		v1.MediaTypeImageIndex:    `{"schemaVersion":1}`,
		"text/plain":              "hello",
		"application/vnd.docker.distribution.manifest.v2+json": strings.Repeat(" ", 5<<20),
	} {
		if status, b, _ := h.do("PUT", "/v2/a/manifests/1", []byte(body), "Content-Type", mediaType); status < 400 {
			t.Errorf("%s: %d %s, want it refused", mediaType, status, b)
		}
	}
	if images := h.settled(""); len(images) != 0 {
		t.Errorf("images: %+v, want none", images)
	}
}

// A damaged blob in the registry is found and deleted when an image with it is ingested. So the
// next push uploads it again.
func TestDamagedBlobIsReplaced(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	manifest, config, blobs := image(lowerTar, upperTar).build()
	layer := manifest.Layers[1].Digest
	before := h.holdings()
	flipped := bytes.Clone(blobs[1])
	flipped[len(flipped)/2] ^= 1
	for name, bad := range map[string]struct {
		bytes []byte
		want  string
	}{
		"flipped": {flipped, "layer 2 of 2 (" + layer.String() + "): its blob is corrupt"},
		"cut":     {blobs[1][:len(blobs[1])/2], "layer 2 of 2 (" + layer.String() + "): its blob is corrupt"},
		"longer":  {append(bytes.Clone(blobs[1]), blobs[1]...), "layer 2 of 2 ("},
	} {
		for _, b := range append(blobs, config) {
			h.pushBlob("a", b)
		}
		write(t, h.blobFile(layer), bad.bytes)
		h.pushManifest("a", "1", manifest.MediaType, manifest)
		images := h.settled("a:1")
		if len(images) != 1 || images[0].State != wire.StateFailed || !strings.Contains(images[0].Error, bad.want) ||
			strings.Contains(images[0].Error, "\n") {
			t.Errorf("%s: %+v, want one failed image with the reason %q", name, images, bad.want)
		}
		h.unchanged(name, before)
		if status, _, _ := h.do("HEAD", "/v2/a/blobs/"+layer.String(), nil); status != http.StatusNotFound {
			t.Errorf("%s: the registry answers %d for the blob, want 404", name, status)
		}
	}
	if got := h.pushReady("a:1", image(lowerTar, upperTar)); got.Error != "" {
		t.Errorf("the ready image has the error %q, want none", got.Error)
	}
}

// stoppedReader is a source whose second reader of a blob calls stopped before it returns the bytes
// that the blob had when it was opened.
type stoppedReader struct {
	ingest.Source
	opened  atomic.Int64
	stopped func()
}

func (s *stoppedReader) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	blob, err := s.Source.Open(ctx, digest)
	if err != nil || s.opened.Add(1) != 2 {
		return blob, err
	}
	defer blob.Close()
	b, err := io.ReadAll(blob)
	s.stopped()
	return io.NopCloser(bytes.NewReader(b)), err
}

// If another process drops a damaged blob and a client pushes it again, an ingestion that still
// reads the damaged bytes does not delete the new ones.
func TestReplacedBlobStays(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	layer, right := layerOf(lowerTar)
	flipped := bytes.Clone(right)
	flipped[len(flipped)/2] ^= 1
	_, err := h.prepareFrom("a:1", image(lowerTar), func(s ingest.Source) ingest.Source {
		write(t, h.blobFile(layer), flipped)
		return &stoppedReader{Source: s, stopped: func() {
			if err := s.Drop(t.Context(), layer.String()); err != nil || h.stores(layer) {
				t.Errorf("the other process: %v; the damaged blob is stored: %t, want it dropped", err, h.stores(layer))
			}
			h.pushBlob("a", right)
		}}
	})
	if err == nil || !strings.Contains(err.Error(), "its blob is corrupt") {
		t.Errorf("error %v, want one about a corrupt blob", err)
	}
	h.expectBlob("a", layer, right)
}

// A damaged blob stays while a backup is being made, and while another process deletes it.
func TestDamagedBlobStaysForNow(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	blob := h.pushBlob("a", []byte("right"))
	write(t, h.blobFile(blob), []byte("wrong"))
	drop := func(what string, want bool) {
		t.Helper()
		if err := h.Registry().Repository("a").Drop(t.Context(), blob.String()); err != nil || h.stores(blob) == want {
			t.Errorf("%s: %v; the blob is dropped: %t, want %t", what, err, !h.stores(blob), want)
		}
	}
	if err := whileHeld(t, h.config, func(context.Context) error {
		drop("while a backup is being made", false)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	d, may, err := h.Catalog().Blobs.BeginAny(t.Context(), blob.String(), time.Minute)
	if err != nil || !may {
		t.Fatalf("begin a deletion: %t, %v, want true", may, err)
	}
	drop("while another process deletes it", false)
	if err := h.Catalog().Blobs.End(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	drop("afterwards", true)
	h.pushBlob("a", []byte("right")) // waits for no deletion
}

// An image during whose ingestion the hub ends three times fails.
func TestImageThatCrashesTheHub(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.stop()
	ctx := t.Context()
	for try := range 3 {
		c := openHub(t, h.config)
		if try == 0 {
			if _, err := c.Catalog().Name(ctx, "a:1", []catalogImage{{Root: "sha256:1", Digest: "sha256:1",
				State: wire.StateQueued}}, catalog.Job{Kind: "image", Key: "a:1", Root: "sha256:1",
				Payload: []byte("{}")}); err != nil {
				t.Fatal(err)
			}
		}
		_, err := c.Catalog().Jobs.Claim(ctx, c.Owner(), []catalog.Slot{{Kind: "image"}}, time.Hour) // and the hub ends
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	images := runHub(t, openHub(t, h.config)).settled("a:1")
	if len(images) != 1 || images[0].State != wire.StateFailed || !strings.Contains(images[0].Error, "the hub ended") {
		t.Errorf("images %+v, want one failed image with the reason that the hub ended", images)
	}
}
