package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/registry"
)

func openRegistry(t *testing.T, dir string) *registry.Registry {
	t.Helper()
	r, err := registry.Open(t.Context(), registry.Dir(dir), nil, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// push pushes an image whose config and layer contain text. It returns the digests of the manifest,
// the config and the layer.
func push(t *testing.T, to registry.Repository, tag, text string) []string {
	t.Helper()
	blob := func(text string) v1.Descriptor {
		b := []byte(text)
		d := v1.Descriptor{Digest: digest.FromBytes(b), Size: int64(len(b))}
		stored, err := to.Store(t.Context(), d.Digest.String(), d.Size, io.NopCloser(bytes.NewReader(b)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, stored); err != nil {
			t.Fatal(err)
		}
		if err := stored.Close(); err != nil {
			t.Fatal(err)
		}
		return d
	}
	image := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: blob("config " + text),
		Layers: []v1.Descriptor{blob("layer " + text)}}
	image.SchemaVersion, image.Config.MediaType = 2, v1.MediaTypeImageConfig
	image.Layers[0].MediaType = v1.MediaTypeImageLayer
	b, err := json.Marshal(image)
	if err != nil {
		t.Fatal(err)
	}
	m := registry.Manifest{MediaType: image.MediaType, Digest: digest.FromBytes(b).String(), Bytes: b}
	if err := to.PutManifest(t.Context(), tag, m); err != nil {
		t.Fatal(err)
	}
	return []string{m.Digest, image.Config.Digest.String(), image.Layers[0].Digest.String()}
}

// steps is a context that counts the calls of Err, and calls before with each number. A copy calls
// Err before each file.
type steps struct {
	context.Context
	n      int
	before func(n int)
}

func (s *steps) Err() error {
	s.n++
	s.before(s.n)
	return s.Context.Err()
}

// A push moves a tag while a registry is copied, at each step of the copy in turn. The copy has all
// blobs of the image that the tag names in the copy.
func TestTagMovesDuringACopy(t *testing.T) {
	t.Parallel()
	for at, last := 1, false; !last; at++ {
		from, to := t.TempDir(), t.TempDir()
		r := openRegistry(t, from)
		pushed := map[string][]string{}
		for _, text := range []string{"old", "new"} {
			digests := push(t, openRegistry(t, t.TempDir()).Repository("a"), "", text)
			pushed[digests[0]] = digests
		}
		push(t, r.Repository("a"), "latest", "old")
		last = true
		ctx := &steps{Context: t.Context(), before: func(n int) {
			if n == at {
				push(t, r.Repository("a"), "latest", "new")
				last = false
			}
		}}
		if err := copyRegistry(ctx, from, to); err != nil {
			t.Fatal(err)
		}
		copied := openRegistry(t, to).Repository("a")
		m, err := copied.Manifest(t.Context(), "latest")
		if err != nil {
			t.Errorf("pushed before step %d: the copy lacks the tag: %v", at, err)
			continue
		}
		for _, blob := range pushed[m.Digest][1:] {
			r, err := copied.Open(t.Context(), blob)
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				_ = r.Close()
			}
			if err != nil {
				t.Errorf("pushed before step %d: the copy lacks a blob of its tag: %v", at, err)
			}
		}
	}
}

// A second copy removes what was deleted from the registry since the first, and the remains of a
// killed backup. Tags may have names that the registry's library uses for directories.
func TestCopyOfARegistryForgets(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	r := openRegistry(t, from)
	names := []string{"a", "a/b", "a/1"}
	tags := []string{"1", "_uploads", "_layers", "revisions"}
	var gone []string
	for _, name := range names {
		for _, tag := range tags {
			push(t, r.Repository(name), tag, name+tag)
		}
		gone = push(t, r.Repository(name), "gone", "secret")
	}
	if err := copyRegistry(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		for _, ref := range []string{"gone", gone[0]} {
			if err := r.Repository(name).Delete(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, blob := range gone {
		if err := r.Drop(t.Context(), blob); err != nil {
			t.Fatal(err)
		}
	}
	rest := filepath.Join(to, "docker", "registry", "v2", "blobs", "data.new")
	if err := os.WriteFile(rest, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := copyRegistry(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
	copied := openRegistry(t, to)
	for _, name := range names {
		for _, tag := range tags {
			if _, err := copied.Repository(name).Manifest(t.Context(), tag); err != nil {
				t.Error(err)
			}
		}
		for _, ref := range []string{"gone", gone[0]} {
			if _, err := copied.Repository(name).Manifest(t.Context(), ref); !errors.Is(err, registry.ErrNotFound) {
				t.Errorf("manifest %s of %s is still in the copy (%v)", ref, name, err)
			}
		}
	}
	if got, want := filesBelow(t, to), filesBelow(t, from); got != want {
		t.Errorf("the copy has the files\n%s\nwant\n%s", got, want)
	}
}

// filesBelow returns the paths of the files below a directory.
func filesBelow(t *testing.T, dir string) string {
	t.Helper()
	var all bytes.Buffer
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case err == nil && d.IsDir() && d.Name() == "_uploads" && filepath.Base(filepath.Dir(path)) != "tags":
			return filepath.SkipDir
		case err == nil && !d.IsDir():
			fmt.Fprintln(&all, path[len(dir):])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
