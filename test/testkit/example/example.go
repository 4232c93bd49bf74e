// Package example reads stored examples of formats. Each example was written by some version of
// Lighter, and every later version must be able to read it. The name of an example ends in the
// version of its format. A new version of a format adds an example; existing examples never change.
package example

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// maxSize bounds an example, in bytes, because it stays in the repository for ever.
const maxSize = 64 << 10

var update = flag.Bool("update", false, "write the examples that do not exist yet")

// Stored returns an example below the test's directory testdata. With -update, an example that does
// not exist is written first.
func Stored(t *testing.T, name string, write func() []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && *update {
		b = write()
		if len(b) > maxSize {
			t.Fatalf("the example %s has %d bytes, want at most %d", name, len(b), maxSize)
		}
		if err = os.WriteFile(path, b, 0o644); err == nil {
			t.Logf("wrote the new example %s", path)
		}
	}
	if err != nil {
		t.Fatalf("read an example (a new one is written by go test -update): %v", err)
	}
	return b
}

// StoredDir extracts an example of a directory into a new directory, and returns the new path. With
// -update, an example that does not exist is made from the directory that write returns.
func StoredDir(t *testing.T, name string, write func() (dir string)) string {
	t.Helper()
	packed := Stored(t, name, func() []byte {
		b, err := packDir(write())
		if err != nil {
			t.Fatal(err)
		}
		return b
	})
	dir := t.TempDir()
	if err := unpackDir(dir, packed); err != nil {
		t.Fatalf("extract the example %s: %v", name, err)
	}
	return dir
}

// packDir returns the directories and regular files below dir as a compressed tar.
func packDir(dir string) ([]byte, error) {
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(z)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		return addFile(w, dir, path, d)
	})
	err = errors.Join(err, w.Close(), z.Close())
	return out.Bytes(), err
}

func addFile(w *tar.Writer, dir, path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: int64(info.Mode().Perm())}
	if d.IsDir() {
		return w.WriteHeader(h)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, int64(len(content))
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

func unpackDir(dir string, packed []byte) error {
	z, err := zstd.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	defer z.Close()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.Mkdir(path, h.FileInfo().Mode())
		} else {
			err = extractFile(path, h.FileInfo().Mode(), r)
		}
		if err != nil {
			return err
		}
	}
}

func extractFile(path string, mode fs.FileMode, r io.Reader) error {
	content, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, mode)
}
