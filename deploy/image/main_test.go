package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// made makes a layout of two binaries, and returns its files.
func made(t *testing.T) (dir string, files map[string]string) {
	t.Helper()
	from := t.TempDir()
	for _, arch := range []string{"amd64", "arm64"} {
		if err := os.WriteFile(filepath.Join(from, arch), []byte("the program for "+arch), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir = t.TempDir()
	if err := run([]string{dir, "v1.2.3", "1700000000", "amd64=" + filepath.Join(from, "amd64"),
		"arm64=" + filepath.Join(from, "arm64")}); err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var b []byte
			b, err = os.ReadFile(path)
			files[strings.TrimPrefix(path, dir+"/")] = string(b)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return dir, files
}

// document reads a JSON blob.
func document(t *testing.T, files map[string]string, d v1.Descriptor, value any) {
	t.Helper()
	text := files["blobs/sha256/"+d.Digest.Encoded()]
	if int64(len(text)) != d.Size {
		t.Fatalf("the blob %s has %d bytes, want %d", d.Digest, len(text), d.Size)
	}
	if err := json.Unmarshal([]byte(text), value); err != nil {
		t.Fatal(err)
	}
}

// The same binaries give the same bytes. The image of each architecture starts its program, which
// belongs to root.
func TestLayout(t *testing.T) {
	_, files := made(t)
	_, again := made(t)
	if len(files) != 2+1+2*3 || len(again) != len(files) {
		t.Errorf("got %d files, want two documents, an index, and three blobs of each image", len(files))
	}
	for name, text := range files {
		if again[name] != text {
			t.Errorf("%s differs when it is made again", name)
		}
	}
	var top, index v1.Index
	if err := json.Unmarshal([]byte(files["index.json"]), &top); err != nil || len(top.Manifests) != 1 {
		t.Fatalf("index.json: %+v, %v", top, err)
	}
	if tag := top.Manifests[0].Annotations[v1.AnnotationRefName]; tag != "v1.2.3" {
		t.Errorf("the tag is %s, want the release", tag)
	}
	document(t, files, top.Manifests[0], &index)
	for i, arch := range []string{"amd64", "arm64"} {
		var manifest v1.Manifest
		var config v1.Image
		document(t, files, index.Manifests[i], &manifest)
		document(t, files, manifest.Config, &config)
		if config.Architecture != arch || index.Manifests[i].Platform.Architecture != arch ||
			strings.Join(config.Config.Entrypoint, " ") != "/lighter" {
			t.Errorf("got the config %+v, want one for %s that starts /lighter", config, arch)
		}
		zip, err := gzip.NewReader(strings.NewReader(files["blobs/sha256/"+manifest.Layers[0].Digest.Encoded()]))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(zip)
		if err != nil {
			t.Fatal(err)
		}
		r := tar.NewReader(bytes.NewReader(plain))
		for _, want := range []string{"tmp/", "lighter"} {
			h, err := r.Next()
			if err != nil || h.Name != want || h.Uid != 0 || h.ModTime.Unix() != 1700000000 {
				t.Fatalf("got the entry %+v, %v; want %s of root", h, err, want)
			}
			text, err := io.ReadAll(r)
			if want == "lighter" && (string(text) != "the program for "+arch || err != nil || h.Mode != 0o755) {
				t.Errorf("the program is %q, mode %o (%v)", text, h.Mode, err)
			}
		}
	}
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"d", "v1", "x", "amd64=y"}, {"d", "v1", "1", "amd64"},
		{t.TempDir(), "v1", "1", "amd64=/does/not/exist"}} {
		if err := run(args); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
}
