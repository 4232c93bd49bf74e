package store_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"lighter/format/chunk"
	"lighter/store"
	"lighter/test/testkit/cachetest"
	"lighter/test/testkit/sourcetest"
)

// directory is a Source: a file for each chunk, named by its ID. It shows that a source that knows
// no units needs one method. A source of eStargz layers, or of a registry's blobs, would be
// similar.
type directory string

func (d directory) Fetch(_ context.Context, ref chunk.Ref, take func(store.Answer) error) error {
	file, err := os.Open(filepath.Join(string(d), ref.ID.String()))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("chunk %s: %w", ref.ID, chunk.ErrNotFound)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return take(store.Answer{Origin: string(d), Length: int64(ref.Length), Body: file})
}

func (d directory) add(plain []byte) (chunk.Ref, error) {
	ref := chunk.Ref{ID: chunk.Sum(plain), Length: uint32(len(plain))}
	return ref, os.WriteFile(filepath.Join(string(d), ref.ID.String()), plain, 0o600)
}

func TestDirectorySource(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T, chunks [][]byte) (store.Source, []chunk.Ref) {
		d := directory(t.TempDir())
		var refs []chunk.Ref
		for _, plain := range chunks {
			ref, err := d.add(plain)
			if err != nil {
				t.Fatal(err)
			}
			refs = append(refs, ref)
		}
		return d, refs
	})
}

// A reference may name a unit that the source does not know. The file of a chunk may be damaged.
func TestDirectorySourceIsVerified(t *testing.T) {
	d := directory(t.TempDir())
	ref, err := d.add([]byte("chunk"))
	if err != nil {
		t.Fatal(err)
	}
	ref.Unit = chunk.Unit{Pack: chunk.ID{1}}
	if err := os.WriteFile(filepath.Join(string(d), ref.ID.String()), []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	units := store.NewFetcher(d, cachetest.NewMemory())
	got := make([]byte, 5)
	err = units.Share().Read(ctx, ref, 0, got, cancel) // the first try ends the read
	if !errors.As(err, new(*chunk.InvalidError)) || string(got) == "wrong" {
		t.Errorf("Read of a damaged chunk: got %q, %v, want an InvalidError", got, err)
	}
}

// A device reads each chunk from the cache first, and from the source if it is missing.
func Example() {
	dir, err := os.MkdirTemp("", "chunks")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	source := directory(dir)
	ref, err := source.add([]byte("a chunk of a file"))
	if err != nil {
		panic(err)
	}

	units := store.NewFetcher(source, cachetest.NewMemory())
	share := units.Share() // one for each device
	dst := make([]byte, 5)
	for range 2 {
		cached := share.Cached(ref, 2, dst)
		if !cached {
			if err := share.Read(context.Background(), ref, 2, dst, nil); err != nil {
				panic(err)
			}
		}
		fmt.Printf("%s, cached: %v\n", dst, cached)
		units.Wait() // until the chunk is stored
	}
	// Output:
	// chunk, cached: false
	// chunk, cached: true
}
