// Command tableverify reads a layer with a table of contents with the library of
// stargz-snapshotter, and compares the table and each chunk with their digests.
//
//	tableverify BLOB DIGEST
//
// DIGEST is the annotation of the table's digest. The command prints a line for each regular file
// that is not empty: its path and the SHA-256 of what was read.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/opencontainers/go-digest"
)

func main() {
	if err := verify(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "tableverify:", err)
		os.Exit(1)
	}
}

func verify(path, annotation string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	r, err := estargz.Open(io.NewSectionReader(f, 0, info.Size()),
		estargz.WithDecompressors(&zstdchunked.Decompressor{}))
	if err != nil {
		return err
	}
	v, err := r.VerifyTOC(digest.Digest(annotation))
	if err != nil {
		return err
	}
	root, ok := r.Lookup("")
	if !ok {
		return fmt.Errorf("no root")
	}
	return walk(r, v, root)
}

func walk(r *estargz.Reader, v estargz.TOCEntryVerifier, dir *estargz.TOCEntry) (err error) {
	dir.ForeachChild(func(_ string, e *estargz.TOCEntry) bool {
		switch {
		case e.Type == "dir":
			err = walk(r, v, e)
		case e.Type == "reg" && e.Size > 0:
			err = file(r, v, e)
		}
		return err == nil
	})
	return err
}

// file reads a file, and its chunks.
func file(r *estargz.Reader, v estargz.TOCEntryVerifier, e *estargz.TOCEntry) error {
	f, err := r.OpenFile(e.Name)
	if err != nil {
		return err
	}
	for at := int64(0); at < e.Size; {
		c, ok := r.ChunkEntryForOffset(e.Name, at)
		if !ok || c.ChunkOffset != at {
			return fmt.Errorf("%s: no chunk at %d", e.Name, at)
		}
		check, err := v.Verifier(c)
		if err != nil {
			return err
		}
		if _, err := io.Copy(check, io.NewSectionReader(f, at, c.ChunkSize)); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
		if !check.Verified() {
			return fmt.Errorf("%s: the chunk at %d has another digest", e.Name, at)
		}
		at += c.ChunkSize
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, e.Size)); err != nil {
		return fmt.Errorf("%s: %w", e.Name, err)
	}
	fmt.Printf("%s %x\n", e.Name, sum.Sum(nil))
	return nil
}
