package blobs

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"testing"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	typesapi "github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"

	"lighter/format/chunk"
	"lighter/format/index"
)

// imageList is a list of containerd's images.
type imageList struct {
	imagesapi.ImagesClient
	images []*imagesapi.Image
}

func (l *imageList) List(context.Context, *imagesapi.ListImagesRequest, ...grpc.CallOption) (
	*imagesapi.ListImagesResponse, error) {
	return &imagesapi.ListImagesResponse{Images: l.images}, nil
}

// fakeContainerd has blobs and images. It counts the reads of each blob.
type fakeContainerd struct {
	content.Store
	list    imageList
	blobs   map[digest.Digest][]byte
	entries map[digest.Digest]map[string]string // the labels of what it has
	reads   map[digest.Digest]int
}

func (f *fakeContainerd) Info(_ context.Context, d digest.Digest) (content.Info, error) {
	set, ok := f.entries[d]
	if !ok {
		return content.Info{}, errdefs.ErrNotFound
	}
	return content.Info{Digest: d, Size: int64(len(f.blobs[d])), Labels: set}, nil
}

type blobReader struct{ *bytes.Reader }

func (blobReader) Close() error { return nil }

func (f *fakeContainerd) ReaderAt(_ context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	f.reads[desc.Digest]++
	return blobReader{bytes.NewReader(f.blobs[desc.Digest])}, nil
}

// entryWriter makes an entry for a layer that has a link: containerd finds all of its bytes.
type entryWriter struct {
	content.Writer
	store *fakeContainerd
	desc  ocispec.Descriptor
}

func (f *fakeContainerd) Writer(_ context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	return entryWriter{store: f, desc: o.Desc}, nil
}

func (w entryWriter) Close() error { return nil }

func (w entryWriter) Status() (content.Status, error) {
	return content.Status{Offset: w.desc.Size}, nil
}

func (w entryWriter) Commit(_ context.Context, _ int64, d digest.Digest, opts ...content.Opt) error {
	var info content.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return err
		}
	}
	w.store.entries[d] = info.Labels
	return nil
}

func (f *fakeContainerd) put(t *testing.T, v any, set map[string]string) ocispec.Descriptor {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(text)
	f.blobs[d], f.entries[d] = text, set
	return ocispec.Descriptor{Digest: d, Size: int64(len(text))}
}

// pull makes an image whose layers containerd lacks. It returns the digests of manifest and config.
func (f *fakeContainerd) pull(t *testing.T, name string, layers ...string) (manifest, config digest.Digest) {
	t.Helper()
	set := map[string]string{labels.LabelDistributionSource + ".registry.example.org": name}
	var image ocispec.Image
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
	for _, layer := range layers {
		d := digest.FromString(layer)
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: d,
			Size: 9})
		image.RootFS.DiffIDs = append(image.RootFS.DiffIDs, digest.FromString("diff "+layer))
		set["containerd.io/gc.ref.content.l."+layer] = d.String()
	}
	image.Author = name
	m.Config = f.put(t, image, nil)
	target := f.put(t, m, set)
	f.list.images = append(f.list.images, &imagesapi.Image{Name: name, Target: &typesapi.Descriptor{
		MediaType: m.MediaType, Digest: target.Digest.String(), Size: target.Size}})
	return target.Digest, m.Config.Digest
}

// A scan makes links and entries for all layers that containerd lacks and a hub has, also for an
// image that was built on another one that is listed after it. It reads each config once, and looks
// twice only at images that lack layers after the first look.
func TestScan(t *testing.T) {
	hub := &fakeHub{}
	b, in := newTestBlobs(t, hub)
	if err := os.Remove(in.path(testName.layer)); err != nil {
		t.Fatal(err)
	}
	b.config.Namespaces = []string{"test"}
	f := &fakeContainerd{blobs: map[digest.Digest][]byte{}, entries: map[digest.Digest]map[string]string{},
		reads: map[digest.Digest]int{}}
	built, _ := f.pull(t, "built", "a", "b", "own")
	lazy, lazyConfig := f.pull(t, "lazy", "a", "b", "c")
	hub.image = func(manifest string) (*index.ImageStatement, error) {
		if manifest != lazy.String() {
			return nil, chunk.ErrNotFound
		}
		return &index.ImageStatement{Manifest: manifest}, nil
	}
	if err := b.scan(t.Context(), store{content: f, images: &f.list}, in); err != nil {
		t.Fatal(err)
	}
	for _, layer := range []string{"a", "b", "c", "own"} {
		d, want := digest.FromString(layer), layer != "own"
		set, has := f.entries[d]
		if has != want || in.exists(d.String()) != want {
			t.Errorf("layer %s: got an entry %t and a link %t, want %t", layer, has, in.exists(d.String()), want)
		}
		if want && set[labels.LabelUncompressed] != digest.FromString("diff "+layer).String() {
			t.Errorf("layer %s: got the labels %v, want its diffID", layer, set)
		}
	}
	if status := b.Status(); status.Unknown != 1 || status.Links != 3 {
		t.Errorf("got %+v, want one unknown layer and three links", status)
	}
	want := map[digest.Digest]int{built: 2, lazy: 1, lazyConfig: 1}
	if !maps.Equal(f.reads, want) {
		t.Errorf("got the reads %v, want %v", f.reads, want)
	}
}
