package objects

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	_ "gocloud.dev/blob/memblob" // mem://

	"lighter/format/chunk"
	"lighter/format/pack"
)

func open(t *testing.T, url string) *Store {
	t.Helper()
	s, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// stage writes a file that is to become an object.
func stage(t *testing.T, key string, b []byte) Staged {
	t.Helper()
	path := filepath.Join(t.TempDir(), "staged")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return Staged{Key: key, Path: path}
}

func read(t *testing.T, o *Object, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	b, err := io.ReadAll(o)
	if err != nil || int64(len(b)) != o.Size {
		t.Fatalf("%d bytes of %d, %v", len(b), o.Size, err)
	}
	return b
}

// Every bucket behaves alike; mem:// stands for those that are not directories.
func TestBuckets(t *testing.T) {
	for name, url := range map[string]string{"directory": "file://" + t.TempDir() + "/new", "elsewhere": "mem://"} {
		t.Run(name, func(t *testing.T) {
			s := open(t, url)
			ctx := t.Context()
			id := chunk.Sum([]byte("tree"))
			for _, text := range []string{"an index", "the same, made again"} {
				f := stage(t, IndexKey(id), []byte(text))
				if err := s.Publish(ctx, []Staged{f}); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(f.Path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the staged file: %v", err)
				}
				o, err := s.Open(ctx, IndexKey(id))
				if got := read(t, o, err); string(got) != text {
					t.Errorf("%q came back as %q", text, got)
				}
				var b bytes.Buffer
				o, err = s.Open(ctx, IndexKey(id))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := o.WriteTo(&b); err != nil || b.String() != text || o.Close() != nil {
					t.Errorf("%q was written as %q, %v", text, b.String(), err)
				}
			}
			if err := s.Delete(ctx, []string{IndexKey(id), LocationsKey(id)}); err != nil {
				t.Errorf("delete what is there and what is not: %v", err)
			}
			if _, err := s.Open(ctx, IndexKey(id)); !errors.Is(err, ErrNotFound) {
				t.Errorf("a deleted object: %v", err)
			}
			if err := s.Publish(ctx, []Staged{{Key: "packs/x", Path: "/nowhere"}}); err == nil {
				t.Error("a file that is not there was published")
			}
		})
	}
}

func TestUnitsOfPacks(t *testing.T) {
	s := open(t, "file://"+t.TempDir())
	ctx := t.Context()
	var b bytes.Buffer
	w := pack.NewWriter(&b)
	units := []string{"first unit", "second", "3"}
	for _, u := range units {
		if _, err := w.Add([]byte(u)); err != nil {
			t.Fatal(err)
		}
	}
	id, size, err := w.Close()
	if err != nil || size != int64(b.Len()) {
		t.Fatal(size, err)
	}
	unknown := chunk.Unit{Pack: chunk.Sum(nil)}
	if _, err := s.OpenUnit(ctx, unknown); !errors.Is(err, ErrNotFound) {
		t.Errorf("a unit of an unknown pack: %v", err)
	}
	if err := s.Publish(ctx, []Staged{stage(t, PackKey(id), b.Bytes())}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // with and without the table in memory
		for n, want := range units {
			o, err := s.OpenUnit(ctx, chunk.Unit{Pack: id, N: uint32(n)})
			if got := read(t, o, err); string(got) != want {
				t.Errorf("unit %d is %q, want %q", n, got, want)
			}
		}
		if _, err := s.OpenUnit(ctx, chunk.Unit{Pack: id, N: 3}); !errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("a unit that the pack does not have: %v", err)
		}
	}
	damaged := chunk.Sum([]byte("damaged"))
	if err := s.Publish(ctx, []Staged{stage(t, PackKey(damaged), b.Bytes()[:b.Len()-3])}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.OpenUnit(ctx, chunk.Unit{Pack: damaged}); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("a unit of half a pack: %v", err)
	}
}

func TestBucketThatCannotBeOpened(t *testing.T) {
	for _, url := range []string{"nonsense://x", "://", "file:///dev/null/x"} {
		if _, err := Open(t.Context(), url); err == nil {
			t.Errorf("%s was opened", url)
		}
	}
}
