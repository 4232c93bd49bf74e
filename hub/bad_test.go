package hub

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	wire "lighter/store/hub"
	"lighter/test/testkit/tarball"
)

// badImage is an image that cannot be taken in, and what the reason must say.
type badImage struct {
	image   fakeImage
	reasons []string
}

func badImages() map[string]badImage {
	of := func(l fakeLayer) fakeImage { return fakeImage{layers: []fakeLayer{{tar: lowerTar}, l}} }
	second := "layer 2 of 2 (sha256:"
	other := digest.FromString("something else")
	return map[string]badImage{
		"another diffID":     {of(fakeLayer{tar: upperTar, diffID: other}), []string{second, "diffID", other.String()}},
		"not gzip inside":    {of(fakeLayer{tar: upperTar, blob: append([]byte{0x1f, 0x8b}, noise(7, 3000)...)}), []string{second, "gzip"}},
		"gzip cut short":     {of(fakeLayer{tar: upperTar, blob: gzipped(upperTar)[:5000]}), []string{second, "unexpected EOF"}},
		"no tar":             {of(fakeLayer{tar: []byte(strings.Repeat("not a tar stream ", 100))}), []string{second, "tar"}},
		"tar cut short":      {of(fakeLayer{tar: upperTar[:5000]}), []string{second, `entry "etc/new"`, "unexpected EOF"}},
		"another size":       {of(fakeLayer{tar: upperTar, size: 12}), []string{second, "the manifest says 12"}},
		"unknown media type": {of(fakeLayer{tar: upperTar, mediaType: "application/vnd.example.layer.v7"}), []string{second, "application/vnd.example.layer.v7", "unknown"}},
		"foreign layer":      {of(fakeLayer{tar: upperTar, mediaType: "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"}), []string{second, "must not be copied"}},
		"a hard link to nothing": {image(lowerTar, tarball.Of(tarball.Link("etc/link", "etc/nothing"))),
			[]string{second, `entry "etc/link"`, "no such file"}},
		"a refused name": {image(lowerTar, tarball.Of(tarball.File(strings.Repeat("n", 256), "x"))),
			[]string{second, `entry "nnn`, "name too long"}},
		"a negative size":      {image(tarball.Of(tarball.File("a", "x", tarball.Claim(-5)))), []string{"layer 1 of 1 (sha256:", "invalid tar header"}},
		"an absurd size":       {image(tarball.Of(tarball.File("a", "x", tarball.Claim(1<<50)))), []string{"layer 1 of 1 (sha256:", `entry "a"`}},
		"a file without data":  {image(tarball.Of(tarball.File("a", "x", tarball.Claim(1<<20)))), []string{"layer 1 of 1 (sha256:", `entry "a"`, "unexpected EOF"}},
		"too many bytes":       {image(tarball.Of(tarball.File("a", noise(1, 2<<20)))), []string{"layer 1 of 1 (sha256:", "more than the limit of 1048576 bytes"}},
		"too many entries":     {image(tarball.Of(manyFiles(1001)...)), []string{"layer 1 of 1 (sha256:", "more than the limit of 1000 entries"}},
		"too many in all":      {image(tarball.Of(manyFiles(600)...), tarball.Of(manyFiles(600)...)), []string{second, "more than the limit of 1000 entries"}},
		"a config that is not": {fakeImage{layers: image(lowerTar).layers, config: []byte("{]")}, []string{"config sha256:", "invalid character"}},
		"no diffIDs": {fakeImage{layers: image(lowerTar).layers, config: []byte(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers"}}`)},
			[]string{"names 0 diffIDs", "1 layers"}},
		"a diffID that is none": {fakeImage{layers: image(lowerTar).layers,
			config: []byte(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:12"]}}`)}, []string{"is not a diffID"}},
		"no layers":                 {image(), []string{"no layers"}},
		"a manifest that cannot be": {fakeImage{layers: image(lowerTar).layers, change: func(m *v1.Manifest) { m.Layers[0].Size = -1 }}, []string{"size -1"}},
	}
}

func manyFiles(n int) []tarball.Item {
	var items []tarball.Item
	for i := range n {
		items = append(items, tarball.File(fmt.Sprintf("f%d", i), "content"))
	}
	return items
}

func small(c *Config) { c.Limits = Limits{LayerBytes: 1 << 20, Entries: 1000} }

// What cannot be taken in fails with a reason, and leaves nothing behind.
func TestBadImagesFailAndLeaveNothing(t *testing.T) {
	t.Parallel()
	h := startHub(t, small)
	h.push("good:1", image(tarball.Of(tarball.File("a", noise(9, 200_000)))))
	h.ready("good:1")
	before := h.holdings()
	for name, bad := range badImages() {
		repository := "bad/" + strings.ReplaceAll(name, " ", "-")
		repository = strings.ToLower(repository)
		h.push(repository+":1", bad.image)
		images := h.settled(repository + ":1")
		if len(images) != 1 || images[0].State != wire.StateFailed {
			t.Errorf("%s: %+v", name, images)
			continue
		}
		for _, want := range append(bad.reasons, "image "+repository+":1: ") {
			if !strings.Contains(images[0].Error, want) {
				t.Errorf("%s: the reason %q does not say %q", name, images[0].Error, want)
			}
		}
		if strings.Count(images[0].Error, "\n") > 0 {
			t.Errorf("%s: the reason has several lines: %q", name, images[0].Error)
		}
		h.unchanged(name, before)
		if _, err := h.add(wire.Add{Name: repository + ":1"}); err == nil || !strings.Contains(err.Error(), bad.reasons[0]) {
			t.Errorf("%s: once more: %v", name, err)
		}
		h.unchanged(name+", once more", before)
	}
	h.push("good:2", image(lowerTar, upperTar))
	h.ready("good:2")
}

// unchanged checks that the hub holds what it held, and that no file is left.
func (h *testHub) unchanged(what string, before holdings) {
	h.t.Helper()
	if now := h.holdings(); fmt.Sprint(now) != fmt.Sprint(before) {
		h.t.Errorf("%s: the hub holds\n%v\nafter\n%v", what, now, before)
	}
	if left := files(h.t, scratchDir(h.config.Root)); len(left) > 0 {
		h.t.Errorf("%s: left in the scratch space: %v", what, left)
	}
}

func TestManifestsThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	for mediaType, body := range map[string]string{
		v1.MediaTypeImageManifest: "{]",
		v1.MediaTypeImageIndex:    `{"schemaVersion":1}`,
		"text/plain":              "hello",
		"application/vnd.docker.distribution.manifest.v2+json": strings.Repeat(" ", 5<<20),
	} {
		if status, b, _ := h.do("PUT", "/v2/a/manifests/1", []byte(body), "Content-Type", mediaType); status < 400 {
			t.Errorf("%s: %d %s", mediaType, status, b)
		}
	}
	if images := h.settled(""); len(images) != 0 {
		t.Errorf("images: %+v", images)
	}
}

// A blob that rots in the registry is found out, and the image can be tried
// again once the blob is whole.
func TestCorruptBlobIsFoundOutAndTriedAgain(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	manifest, config, blobs := image(lowerTar, upperTar).build()
	for _, b := range append(blobs, config) {
		h.pushBlob("a", b)
	}
	file := h.blobFile(manifest.Layers[1].Digest)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before := h.holdings()
	flipped := []byte(string(good))
	flipped[len(flipped)/2] ^= 1
	for name, bad := range map[string]struct {
		bytes []byte
		want  string
	}{
		"flipped": {flipped, "layer 2 of 2 (" + manifest.Layers[1].Digest.String() + "): its blob is corrupt"},
		"cut":     {good[:len(good)/2], "layer 2 of 2 (" + manifest.Layers[1].Digest.String() + "): its blob is corrupt"},
		"longer":  {append([]byte(string(good)), good...), "layer 2 of 2 ("},
	} {
		if err := os.WriteFile(file, bad.bytes, 0o644); err != nil {
			t.Fatal(err)
		}
		h.pushManifest("a", "1", manifest.MediaType, manifest)
		if images := h.settled("a:1"); len(images) != 1 || images[0].State != wire.StateFailed || !strings.Contains(images[0].Error, bad.want) {
			t.Errorf("%s: %+v", name, images)
		}
		h.unchanged(name, before)
	}
	if err := os.WriteFile(file, good, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := h.ready("a:1"); got.Error != "" {
		t.Errorf("a ready image with the error %q", got.Error)
	}
}

// An image that the hub dies of must not keep it from starting for ever.
func TestImageThatEndsTheHubIsGivenUp(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.stop()
	ctx := t.Context()
	for try := range 5 {
		c := openHub(t, h.config)
		if try == 0 {
			if _, err := c.catalog.SetImages(ctx, "a:1", []catalogImage{{Root: "sha256:1", Digest: "sha256:1", State: wire.StateQueued}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.catalog.Requeue(ctx); err != nil {
			t.Fatal(err)
		}
		_, err := c.catalog.Next(ctx) // and the hub dies
		if given := err != nil; given != (try >= 3) {
			t.Errorf("try %d: %v", try, err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	images := runHub(t, openHub(t, h.config)).settled("a:1")
	if len(images) != 1 || images[0].State != wire.StateFailed || !strings.Contains(images[0].Error, "the hub ended") {
		t.Errorf("%+v", images)
	}
}
