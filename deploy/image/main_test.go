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
	"slices"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// made makes a layout of two binaries, and returns its files.
func made(t *testing.T, kind string) (dir string, files map[string]string) {
	t.Helper()
	from := t.TempDir()
	for _, arch := range []string{"amd64", "arm64"} {
		if err := os.WriteFile(filepath.Join(from, arch), []byte("the program for "+arch), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir = t.TempDir()
	if err := run([]string{kind, dir, "v1.2.3", "1700000000", "amd64=" + filepath.Join(from, "amd64"),
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
	_, files := made(t, "kubernetes")
	_, again := made(t, "kubernetes")
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
		r := tar.NewReader(unzipped(t, files, manifest))
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

// unzipped returns the layer of an image.
func unzipped(t *testing.T, files map[string]string, manifest v1.Manifest) io.Reader {
	t.Helper()
	zip, err := gzip.NewReader(strings.NewReader(files["blobs/sha256/"+manifest.Layers[0].Digest.Encoded()]))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(plain)
}

// The extension of Talos has a manifest with the release, two services with one program, and a part
// of containerd's configuration. It has nothing that Talos does not allow: other paths, files that
// everybody can write, special files.
func TestExtension(t *testing.T) {
	_, files := made(t, "talos")
	var top, index v1.Index
	if err := json.Unmarshal([]byte(files["index.json"]), &top); err != nil {
		t.Fatal(err)
	}
	document(t, files, top.Manifests[0], &index)
	for i, arch := range []string{"amd64", "arm64"} {
		var manifest v1.Manifest
		document(t, files, index.Manifests[i], &manifest)
		var order []string
		texts := map[string]string{}
		for r := tar.NewReader(unzipped(t, files, manifest)); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			text, failed := io.ReadAll(r)
			if err != nil || failed != nil {
				t.Fatal(err, failed)
			}
			if h.Mode&0o022 != 0 || h.Uid != 0 {
				t.Errorf("%s has the mode %o and the owner %d, want root's alone", h.Name, h.Mode, h.Uid)
			}
			if h.Typeflag != tar.TypeDir {
				order = append(order, h.Name)
			}
			texts[h.Name] = string(text)
		}
		const program = "rootfs/usr/local/lib/containers/lighter/lighter"
		want := []string{"manifest.yaml", "rootfs/etc/cri/conf.d/10-lighter.part",
			"rootfs/usr/local/etc/containers/lighter.yaml", "rootfs/usr/local/etc/containers/lighter-keeper.yaml",
			program, "rootfs/usr/local/lib/containers/lighter-keeper/lighter"}
		if !slices.Equal(order, want) {
			t.Errorf("got the files %v, want %v", order, want)
		}
		if texts[program] != "the program for "+arch || texts[want[5]] != texts[program] ||
			!strings.Contains(texts["manifest.yaml"], "\n  version: v1.2.3\n") {
			t.Errorf("%s: got the programs %q and %q, and the manifest\n%s", arch, texts[program], texts[want[5]],
				texts["manifest.yaml"])
		}
		if _, ok := texts["rootfs/usr/local/lib/containers/"]; !ok {
			t.Error("the directories of the files are missing")
		}
	}
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"talos", "d", "v1", "x", "amd64=y"}, {"talos", "d", "v1", "1", "amd64"},
		{"talos", t.TempDir(), "v1", "1", "amd64=/does/not/exist"}, {"other", t.TempDir(), "v1", "1", "amd64=/x"}} {
		if err := run(args); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
}
