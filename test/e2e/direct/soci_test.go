//go:build e2e

package direct

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/soci"
	"lighter/format/tree"
	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/referrers"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// raw is a manifest as it is pushed.
type raw struct {
	bytes     []byte
	mediaType types.MediaType
}

func (r raw) RawManifest() ([]byte, error)        { return r.bytes, nil }
func (r raw) MediaType() (types.MediaType, error) { return r.mediaType, nil }

// usual is the size in bytes above which SOCI's program makes a zTOC of a layer.
const usual = 10 << 20

// pushIndex makes a SOCI index of the image in a layout, as SOCI does it, and pushes it to the
// image's repository. It has the layers of more than smallest bytes.
func pushIndex(t *testing.T, dir, repository string, smallest int64) {
	t.Helper()
	repo, push := pusher(t, repository)
	subject, err := remote.Head(repo.Tag("latest"))
	if err != nil {
		t.Fatal(err)
	}
	index := indexOf(t, dir, smallest, push)
	index.Subject = &ocispec.Descriptor{MediaType: string(subject.MediaType),
		Digest: digest.Digest(subject.Digest.String()), Size: subject.Size}
	putIndex(t, repo, index) // and the fallback tag, if the registry has no referrers API
}

// bindIndex does the same in SOCI's version 2: the image's manifest names the index. The image is
// pushed afterwards.
func bindIndex(t *testing.T, dir, repository string, smallest int64) {
	t.Helper()
	repo, push := pusher(t, repository)
	id := putIndex(t, repo, indexOf(t, dir, smallest, push))
	manifest, err := layout.Manifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	config, err := layout.Config(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest.Annotations = map[string]string{soci.AnnotationIndexDigest: id.String()}
	if err := layout.Write(dir, manifest, config); err != nil {
		t.Fatal(err)
	}
}

// pusher returns a repository, and a function that pushes blobs to it.
func pusher(t *testing.T, repository string) (name.Repository, func(b []byte, mediaType string)) {
	t.Helper()
	repo, err := name.NewRepository(repository, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	return repo, func(b []byte, mediaType string) {
		if err := remote.WriteLayer(repo, static.NewLayer(b, types.MediaType(mediaType))); err != nil {
			t.Fatal(err)
		}
	}
}

func indexOf(t *testing.T, dir string, smallest int64, push func(b []byte, mediaType string)) soci.Index {
	t.Helper()
	manifest, err := layout.Manifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	index := soci.Index{Tool: "test"}
	for _, d := range manifest.Layers {
		if d.Size > smallest {
			index.Layers = append(index.Layers, indexed(t, dir, d, push))
		}
	}
	push([]byte("{}"), soci.MediaTypeIndexV1)
	return index
}

func putIndex(t *testing.T, repo name.Repository, index soci.Index) (id digest.Digest) {
	t.Helper()
	text := index.Encode()
	id = digest.FromBytes(text)
	if err := remote.Put(repo.Digest(id.String()), raw{text, types.OCIManifestSchema1}); err != nil {
		t.Fatal(err)
	}
	return id
}

// indexed makes the zTOC of a layer, and pushes it.
func indexed(t *testing.T, dir string, d ocispec.Descriptor, push func(b []byte, mediaType string)) soci.IndexedLayer {
	t.Helper()
	blob, err := os.Open(layout.Blob(dir, d))
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	ztoc, err := soci.Make(blob, soci.Options{Compression: soci.Gzip, SpanSize: soci.DefaultSpanSize, Tool: "test",
		Limits: tree.Limits{}})
	if err != nil {
		t.Fatal(err)
	}
	push(ztoc, soci.MediaTypeTable)
	id, err := chunk.ParseID(d.Digest.Encoded())
	if err != nil {
		t.Fatal(err)
	}
	return soci.IndexedLayer{Layer: soci.Digest(id), MediaType: d.MediaType, SpanSize: soci.DefaultSpanSize,
		Table: soci.Blob{Digest: soci.Digest(chunk.Sum(ztoc)), Size: int64(len(ztoc))}}
}

// An unchanged image with a SOCI index starts lazily, and has the same files as with overlayfs. The
// node has no hub. It finds the index by the fallback tag at distribution, and by the referrers API
// at a registry that has it.
func TestSOCI(t *testing.T) {
	other := referrers.Start(t)
	s := start(t, site.Options{Hubs: []string{}}, "lazy/*", other.Host+"/lazy/*")
	dir := filepath.Join(t.TempDir(), "layout") // with a small layer, which has no zTOC
	err := layout.Extend(images.Dir("base"), dir,
		func(l *layout.Layer) error { return l.File("opt/mine", []byte(strings.Repeat("mine", 1000))) })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Push(t.Context(), dir, "lazy/soci"); err != nil {
		t.Fatal(err)
	}
	image, err := images.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{site.Reference("lazy/soci"), other.Push(t, image, "lazy/soci")} {
		pushIndex(t, dir, strings.TrimSuffix(ref, ":latest"), usual)
		if moved := pull(t, s, ref); moved > images.Size(t, "base")/4 {
			t.Errorf("%s: the pull received %d bytes, want the zTOC only", ref, moved)
		}
		if st := sitetest.Status(t, s); len(st.Images) != 1 || !st.Images[0].Lazy {
			t.Errorf("%s: images %+v, want one that is lazy", ref, st.Images)
		}
		compare(t, s, ref)
		if tags := tagsOf(t, ref); (len(tags) == 1) != strings.HasPrefix(ref, other.Host) {
			t.Errorf("%s: tags %q, want a fallback tag only where there is no referrers API", ref, tags)
		}
		if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
}

// tagsOf lists the tags of an image's repository.
func tagsOf(t *testing.T, ref string) []string {
	t.Helper()
	image, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	tags, err := remote.List(image.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tags
}

// What `lighter export --format soci` pushes starts lazily, with the prioritized files first, and
// has the same files as with overlayfs.
func TestExportedSOCI(t *testing.T) {
	s := start(t, site.Options{Hubs: []string{}}, "lazy/*")
	dir := filepath.Join(t.TempDir(), "layout") // with a small layer, which has no zTOC
	err := layout.Extend(images.Dir("base"), dir,
		func(l *layout.Layer) error { return l.File("opt/mine", []byte(strings.Repeat("mine", 1000))) })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Push(t.Context(), dir, "plain"); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(t.TempDir(), "first")
	if err := os.WriteFile(first, []byte("/usr/bin/dash\n/usr/bin/perl\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ref := site.Reference("lazy/soci")
	lighter(t, "export", "--format", "soci", "--to", "docker://"+ref, "--plain-http",
		"--source-plain-http", "--prioritize", first,
		site.Reference("plain"))
	if moved := pull(t, s, ref); moved > images.Size(t, "base")/4 {
		t.Errorf("the pull received %d bytes, want the zTOC only", moved)
	}
	if st := sitetest.Status(t, s); len(st.Images) != 1 || !st.Images[0].Lazy {
		t.Errorf("images %+v, want one that is lazy", st.Images)
	}
	if out := run(t, s, site.Lighter, ref, "sh", "-c", hello); out != "hello\n" {
		t.Fatalf("got %q", out)
	}
	if st := sitetest.Status(t, s); st.Ahead.Startup.Fetched == 0 {
		t.Errorf("prefetched %+v, want the prioritized files", st.Ahead)
	}
	compare(t, s, ref)
}
