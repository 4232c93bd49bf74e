package registry

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/away"
)

// The error of a read of one blob or manifest says which one it is, and that the storage works.
// Errors about files that do not exist, and errors of writes, are no errors of a read.
func TestErrorsOfReads(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(t.Context(), Dir(dir), nil, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	layer, config := put(t, r, "a", []byte("layer")), put(t, r, "a", []byte("{}"))
	m := manifestOf(t, config, layer)
	a := r.Repository("a")
	if err := a.PutManifest(t.Context(), "1", m); err != nil {
		t.Fatal(err)
	}
	manifest := v1.Descriptor{Digest: digest.Digest(m.Digest)}
	data := func(d v1.Descriptor) string { return filepath.Join(dir, dataFile(d.Digest)) }
	readLayer := func(ctx context.Context) error {
		b, err := a.Open(ctx, layer.Digest.String())
		if err == nil {
			defer b.Close()
			_, err = io.ReadAll(b)
		}
		return err
	}
	verifyLayer := func(ctx context.Context) error {
		_, err := r.VerifyBlob(ctx, layer.Digest.String())
		return err
	}
	readConfig := func(ctx context.Context) error { _, err := a.Config(ctx, config); return err }
	readManifest := func(ctx context.Context) error { _, err := a.Manifest(ctx, m.Digest); return err }
	readTag := func(ctx context.Context) error { _, err := a.Manifest(ctx, "1"); return err }
	const noBytes, loop = "/proc/self/mem", "loop" // the kernel answers reads of the first with EIO
	for _, c := range []struct {
		what, file, link string
		cause            error
		object           string
		read             func(ctx context.Context) error
	}{
		{"layer", data(layer), noBytes, syscall.EIO, layer.Digest.String(), readLayer},
		{"layer, to its end", data(layer), noBytes, syscall.EIO, layer.Digest.String(), verifyLayer},
		{"layer that cannot be opened", data(layer), loop, syscall.ELOOP, layer.Digest.String(), readLayer},
		{"config", data(config), noBytes, syscall.EIO, config.Digest.String(), readConfig},
		{"manifest", data(manifest), noBytes, syscall.EIO, m.Digest, readManifest},
		{"tag", filepath.Join(dir, repositoriesPath, "a/_manifests/tags/1/current/link"), noBytes, syscall.EIO,
			"/tags/1/current/link", readTag},
	} {
		if c.link == loop {
			c.link = c.file
		}
		if err := errors.Join(os.Rename(c.file, c.file+".away"), os.Symlink(c.link, c.file)); err != nil {
			t.Fatal(err)
		}
		err := c.read(t.Context())
		read := away.OneRead(err)
		if read == nil || !strings.Contains(read.Object, c.object) || !strings.Contains(err.Error(), c.cause.Error()) {
			t.Errorf("%s: %v, want an error of the read of %s: %v", c.what, err, c.object, c.cause)
		} else if err := read.Works(t.Context()); err != nil {
			t.Errorf("%s: the storage does not work: %v, want it to", c.what, err)
		}
		if err := errors.Join(os.Remove(c.file), os.Rename(c.file+".away", c.file), c.read(t.Context())); err != nil {
			t.Errorf("%s, after it can be read again: %v, want no error", c.what, err)
		}
	}
	for range 2 { // with and without the file that Works writes
		n := 0
		if err := r.EachBlob(t.Context(), func(string, int64) error { n++; return nil }); err != nil || n != 3 {
			t.Errorf("%d blobs (%v), want 3: what Works has written is none", n, err)
		}
		if err := os.RemoveAll(filepath.Join(dir, probePath)); err != nil {
			t.Fatal(err)
		}
	}
	missing := manifestOf(t, layer, layer)
	if _, err := a.Manifest(t.Context(), missing.Digest); err == nil || away.OneRead(err) != nil {
		t.Errorf("a manifest that does not exist: %v, want ErrNotFound", err)
	}
	// A directory is where the tag's file has to be.
	tag := filepath.Join(dir, repositoriesPath, "a/_manifests/tags/2/current/link")
	if err := os.MkdirAll(filepath.Join(tag, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := a.Tag(t.Context(), "2", m); !errors.Is(err, ErrUnavailable) || away.OneRead(err) != nil {
		t.Errorf("a tag that cannot be written: %v, want ErrUnavailable, and no error of a read", err)
	}
}
