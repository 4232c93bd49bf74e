package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestInvalidCommandLines(t *testing.T) {
	for _, line := range []string{
		"", "pull", "snapshotter", "snapshotter --root /r", "snapshotter --root /r --address /a more",
		"snapshotter --no-such-flag",
		"snapshotter --root /r --address /a --log-level much",
		"convert --kind estargz a", "convert a b", "convert --kind gzip a b",
	} {
		if err := run(t.Context(), strings.Fields(line)); !errors.As(err, new(usageError)) {
			t.Errorf("stargz %s: got %v, want a usageError", line, err)
		}
	}
	for _, line := range []string{"help", "convert --help", "snapshotter -h"} {
		if err := run(t.Context(), strings.Fields(line)); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("stargz %s: got %v, want ErrHelp", line, err)
		}
	}
}

// write writes a text to a temporary file.
func write(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfiguration(t *testing.T) {
	defaults, err := readConfig("")
	if err != nil || !defaults.Direct || defaults.NoPrefetch || defaults.PassThrough {
		t.Errorf("defaults: got %+v (%v), want Direct, with prefetching and without PassThrough", defaults, err)
	}
	config,
		err := readConfig(write(t,
		"no_background_fetch = true\n[blob]\nchunk_size = 7\n[directory_cache]\ndirect = false\n"))
	if err != nil || !config.NoBackgroundFetch || config.ChunkSize != 7 || config.Direct {
		t.Errorf("configuration of a file: got %+v (%v), want the three settings of the file", config, err)
	}
	for _, text := range []string{"no_backgroundfetch = true\n", "noprefetch = 3\n", "["} {
		if _, err := readConfig(write(t, text)); err == nil {
			t.Errorf("invalid configuration was accepted: %q", text)
		}
	}
	usePlainHTTP(&config, "registry:5000")
	if mirrors := config.Host["registry:5000"].Mirrors; len(mirrors) != 1 || !mirrors[0].Insecure {
		t.Errorf("mirrors: got %+v, want one, which is insecure", mirrors)
	}
}

func TestTracesAreMergedInTheOrderOfFirstUse(t *testing.T) {
	head := firstLine + "\nstarts 1\n"
	paths, err := readTraces([]string{write(t, head+"0 0 1 /usr/bin/a\n1 4096 1 /lib/b%20c\n1 8192 1 /usr/bin/a\n"),
		write(t, head+"0 0 1 /lib/b%20c\n0 0 1 /c\n")})
	if want := []string{"usr/bin/a", "lib/b c", "c"}; err != nil || !slices.Equal(paths, want) {
		t.Errorf("got %q, %v, want %q", paths, err, want)
	}
	for _, name := range []string{"no/such/file", write(t, "/usr/bin/a\n"), write(t, head+"0 0 1\n"),
		write(t, head+"0 0 1 /%zz\n"), write(t, "")} {
		if _, err := readTraces([]string{name}); err == nil {
			t.Errorf("invalid traces were accepted: %s", name)
		}
	}
}

// Lighter's stored example of traces can be read.
func TestTracesOfLighter(t *testing.T) {
	paths, err := readTraces([]string{"../../format/trace/testdata/recordings.golden"})
	if err != nil || len(paths) < 2 {
		t.Errorf("paths: got %q (%v), want at least two", paths, err)
	}
}

// put stores a layer of files. The content of each file is its name.
func put(t *testing.T, store content.Store, names ...string) ocispec.Descriptor {
	t.Helper()
	var blob bytes.Buffer
	compressed := gzip.NewWriter(&blob)
	layer := tar.NewWriter(compressed)
	for _, name := range names {
		header := tar.Header{Name: name, Mode: 0o644, Size: int64(len(name)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(name, "/") {
			header = tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeDir}
		}
		if err := layer.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if header.Size > 0 {
			if _, err := layer.Write([]byte(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(layer.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(blob.Bytes()),
		Size: int64(blob.Len())}
	if err := content.WriteBlob(t.Context(), store, desc.Digest.String(), &blob, desc); err != nil {
		t.Fatal(err)
	}
	return desc
}

func openStore(t *testing.T, dir string) content.Store {
	t.Helper()
	store, err := local.NewLabeledStore(dir, labels(filepath.Join(dir, "labels")))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestPathsGoToTheUppermostLayerThatHasThem(t *testing.T) {
	store := openStore(t, t.TempDir())
	lower := put(t, store, "usr/", "usr/a", "usr/b", "c")
	upper := put(t, store, "./usr/", "./usr/b", "d/")
	first, err := assign(t.Context(), store, ocispec.Manifest{Layers: []ocispec.Descriptor{lower, upper}},
		[]string{"c", "usr/b", "d", "gone", "usr/a"})
	if err != nil || !slices.Equal(first[lower.Digest], []string{"c", "usr/a"}) ||
		!slices.Equal(first[upper.Digest], []string{"usr/b"}) || len(first) != 2 {
		t.Errorf("got %q (%v), want c and usr/a of the lower layer, and usr/b of the upper one", first, err)
	}
}

func TestLayersAreConvertedOnce(t *testing.T) {
	for _, kind := range []string{estargzKind, zstdchunkedKind} {
		dir := t.TempDir()
		store := openStore(t, dir)
		layer := put(t, store, "a", "b")
		do := func(first ...string) *ocispec.Descriptor {
			k := kept{dir: dir, kind: kind, first: map[digest.Digest][]string{layer.Digest: first}}
			converted, err := k.convert(t.Context(), openStore(t, dir), layer)
			if err != nil {
				t.Fatal(err)
			}
			return converted
		}
		plain, traced := do(), do("b")
		if plain.Digest == traced.Digest || plain.Annotations[estargz.TOCJSONDigestAnnotation] == "" {
			t.Errorf("%s: got %+v without and %+v with a trace, want two layers with a table of contents", kind, plain,
				traced)
		}
		blobs := count(t, store)
		if blobs != 3 {
			t.Errorf("%s: got %d blobs, want a layer and its two conversions", kind, blobs)
		}
		if again := do("b"); again.Digest != traced.Digest || count(t, store) != blobs {
			t.Errorf("%s: digest of the second conversion: got %s, want %s, and no further blob", kind, again.Digest,
				traced.Digest)
		}
		// A deleted blob is made again.
		if err := store.Delete(t.Context(), plain.Digest); err != nil {
			t.Fatal(err)
		}
		if again := do(); again.Digest != plain.Digest || count(t, store) != blobs {
			t.Errorf("%s: digest of the conversion after the deletion: got %s, want %s, stored again", kind,
				again.Digest, plain.Digest)
		}
	}
}

func count(t *testing.T, store content.Store) (n int) {
	t.Helper()
	if err := store.Walk(context.Background(), func(content.Info) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}
