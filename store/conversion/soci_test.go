package conversion_test

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"lighter/format/soci"
	"lighter/format/tree"
	"lighter/store/conversion"
	"lighter/store/registry"
)

// sociOf reads the OCI index of an export, its image, and its SOCI index.
func sociOf(t *testing.T, all v1.ImageIndex, blob func(digest string) []byte) (image v1.Image, list *v1.IndexManifest,
	index *soci.Index) {
	t.Helper()
	list, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Manifests) != 2 || list.MediaType != types.OCIImageIndex {
		t.Fatalf("got %+v, want an OCI index with an image and a SOCI index", list)
	}
	if image, err = all.Image(list.Manifests[0].Digest); err != nil {
		t.Fatal(err)
	}
	if index, err = soci.DecodeIndex(blob(list.Manifests[1].Digest.String())); err != nil {
		t.Fatal(err)
	}
	return image, list, index
}

// inLayout returns a function that reads the blobs of a layout.
func inLayout(t *testing.T, dir string) func(digest string) []byte {
	return func(digest string) []byte {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, "blobs", strings.ReplaceAll(digest, ":", "/")))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

// An image with a SOCI index has the layers and the config of the old one. Its large layers have
// zTOCs, which match them, and the prioritized files are in the lists of what to prefetch.
func TestSOCI(t *testing.T) {
	original := large(t)
	from, dir := opened(t, "oci:"+stored(t, original)), t.TempDir()
	o := conversion.Options{Format: conversion.SOCI, Dir: t.TempDir(),
		Prioritized: filesOf("/usr/hard", "usr/first", "usr/third", "no/such")}
	done, err := convert(t.Context(), from, "", "oci:"+dir, o)
	if err != nil {
		t.Fatal(err)
	}
	blob := inLayout(t, dir)
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := v1.NewHash(done.Digest)
	if err != nil {
		t.Fatal(err)
	}
	all, err := root.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	image, list, index := sociOf(t, all, blob)
	compareWithOriginal(t, image, original, list.Manifests[1].Digest.String())
	compareDescriptors(t, list, done)
	compareTables(t, index, done, image, blob)
	if left := files(t, o.Dir); left != nil {
		t.Errorf("temporary files were left: %v", left)
	}
	again := opened(t, "oci:"+dir)
	images, err := again.Originals("all")
	if err != nil || len(images) != 1 {
		t.Fatalf("the new image for all platforms: got %d, %v, want one image", len(images), err)
	}
	repeated, err := convert(t.Context(), again, "all", "oci:"+t.TempDir(), o)
	if err != nil || repeated.Digest != done.Digest {
		t.Errorf("exported again: got %s, %v, want %s", repeated.Digest, err, done.Digest)
	}
}

// compareWithOriginal compares the manifest and the config.
func compareWithOriginal(t *testing.T, image, original v1.Image, index string) {
	t.Helper()
	got, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	want, err := original.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Layers, want.Layers) {
		t.Errorf("the layers are %+v, want %+v", got.Layers, want.Layers)
	}
	if got.Config.Digest != want.Config.Digest || got.Config.MediaType != types.OCIConfigJSON ||
		got.MediaType != types.OCIManifestSchema1 {
		t.Errorf("got config %+v in a %s, want the same bytes, with the media types of OCI", got.Config, got.MediaType)
	}
	if notes := map[string]string{"org.example.image": "yes", soci.AnnotationIndexDigest: index}; !reflect.DeepEqual(
		got.Annotations, notes) {
		t.Errorf("the manifest's annotations are %v, want %v", got.Annotations, notes)
	}
	if _, err := image.RawConfigFile(); err != nil {
		t.Error(err)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		tarOf(t, l)
	}
}

// compareDescriptors checks what the OCI index says about its two manifests.
func compareDescriptors(t *testing.T, list *v1.IndexManifest, done conversion.Result) {
	t.Helper()
	platform := &v1.Platform{OS: "linux", Architecture: "amd64"}
	image, index := list.Manifests[0], list.Manifests[1]
	if image.ArtifactType != "" || !image.Platform.Equals(*platform) || done.Images[0].Digest != image.Digest.String() {
		t.Errorf("the image is %+v, and the result %+v", image, done)
	}
	if index.ArtifactType != soci.MediaTypeIndexV2 || !index.Platform.Equals(*platform) ||
		index.MediaType != types.OCIManifestSchema1 || done.Images[0].Index != index.Digest.String() ||
		!reflect.DeepEqual(index.Annotations, map[string]string{soci.AnnotationManifestDigest: image.Digest.String()}) {
		t.Errorf("the SOCI index is %+v, and the result %+v", index, done)
	}
}

// compareTables reads all spans of the zTOCs, and compares the lists of what to prefetch.
func compareTables(t *testing.T, index *soci.Index, done conversion.Result, image v1.Image,
	blob func(digest string) []byte) {
	t.Helper()
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(index.Layers) != 2 || index.Subject != nil {
		t.Fatalf("got %+v, want zTOCs of two layers: the first one and the plain one", index)
	}
	tables := map[string]*soci.Table{}
	for n, l := range index.Layers {
		d := manifest.Layers[n]
		if l.Layer.String() != d.Digest.String() || l.MediaType != string(d.MediaType) ||
			l.SpanSize != soci.DefaultSpanSize || done.Images[0].Layers[n].ZTOC != l.Table.Digest.String() {
			t.Errorf("layer %d: got %+v of %+v", n, l, d)
		}
		table, err := soci.Decode(blob(l.Table.Digest.String()), tree.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		bytesOf := blob(d.Digest.String())
		for i := range table.Spans() {
			s := table.Span(i)
			plain, err := s.Open(bytesOf[s.Compressed.Start:s.Compressed.End])
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, plain); err != nil {
				t.Error(err)
			}
		}
		tables[l.Layer.String()] = table
	}
	// usr/hard is a link to usr/second, and usr/first that of the upper layer. The upper usr/third
	// is in a small layer, which has no zTOC.
	for n, want := range [][]string{{"usr/second"}, {"usr/first", "usr/third"}} {
		l := index.Layers[n]
		table := tables[l.Layer.String()]
		if l.Prefetch == nil {
			t.Fatalf("layer %d has no list of what to prefetch", n)
		}
		text := blob(l.Prefetch.Digest.String())
		if _, err := soci.DecodePrefetch(text, table.Spans()); err != nil {
			t.Error(err)
		}
		lists, err := soci.PrefetchOf([]*soci.Table{table}, filesOf(want...))
		if err != nil || !bytes.Equal(text, soci.EncodePrefetch(lists[0])) {
			t.Errorf("layer %d: prefetched is %s, want the spans %v of %v", n, text, lists, want)
		}
	}
}

// The layers that a registry has are not pushed: those in the repository, and those in another one,
// which are mounted from there.
func TestSOCIFromRegistryToRegistry(t *testing.T) {
	var mu sync.Mutex
	uploads, mounts := map[string]int{}, map[string]int{} // bytes and layers of each repository
	next := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, isBlob := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/blobs/")
		switch {
		case r.Method == http.MethodHead && isBlob && name == "lazy/shell": // the server has one store for all
			http.NotFound(w, r)
			return
		case r.URL.Query().Get("from") == "tools/shell":
			mu.Lock()
			mounts[name]++
			mu.Unlock()
			w.WriteHeader(http.StatusCreated)
			return
		case r.Method == http.MethodPatch:
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			uploads[name] += len(b)
			mu.Unlock()
			r.Body = io.NopCloser(bytes.NewReader(b))
		}
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	if err := remote.Write(reference(t, host+"/tools/shell:1"), large(t)); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	clear(uploads)
	mu.Unlock()
	from, err := registry.FindSource(t.Context(), host+"/tools/shell:1", false)
	if err != nil {
		t.Fatal(err)
	}
	for name, mounted := range map[string]int{"tools/shell": 0, "lazy/shell": 4} {
		o := conversion.Options{Format: conversion.SOCI, Dir: t.TempDir()}
		done, err := convert(t.Context(), from, "linux/amd64", "docker://"+host+"/"+name+":soci", o)
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if uploads[name] > 1<<20 || mounts[name] != mounted {
			t.Errorf("%s: %d bytes were pushed and %d layers mounted, want the zTOCs and %d", name, uploads[name],
				mounts[name], mounted)
		}
		mu.Unlock()
		all, err := remote.Index(reference(t, host+"/"+name+":soci"))
		if err != nil {
			t.Fatal(err)
		}
		image, list, index := sociOf(t, all, func(digest string) []byte {
			found, err := remote.Get(reference(t, host+"/"+name+"@"+digest))
			if err != nil {
				t.Fatal(err)
			}
			return found.Manifest
		})
		compareDescriptors(t, list, done)
		if layers, err := image.Layers(); err != nil || len(layers) != 5 || index.Layers[0].Prefetch != nil {
			t.Errorf("%s: got %d layers, %v, and %+v", name, len(layers), err, index)
		}
		if left := files(t, o.Dir); left != nil {
			t.Errorf("temporary files were left: %v", left)
		}
	}
}
