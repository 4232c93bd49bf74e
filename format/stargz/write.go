package stargz

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"lighter/format/chunk"
)

// defaultChunk is the default length of chunks in bytes: as in stargz-snapshotter.
const defaultChunk = 4 << 20

// Options say how a layer is written.
type Options struct {
	// Format is the format. containers/storage refuses layers that have the annotations of both
	// dialects of zstd:chunked, so a layer is of one. ContainersZstd has what Podman needs to fetch
	// only the missing files: its readers ignore the order of the files.
	Format Format
	// Prioritized are the paths of files that a start needs, in the order of their first reads.
	// They come first in the layer, unless the layer would have another tree then. Paths that the
	// tar does not have are ignored.
	Prioritized []string
	// Chunk bounds the plain bytes of a chunk, up to MaxChunk; 0: 4 MiB.
	Chunk int
	// Pending is how many members may be compressed at a time; 0: 1. Each takes Chunk bytes of
	// memory, and what it is compressed to.
	Pending int
}

// Compressor begins to compress plain, which it owns from then on, as one gzip member or one zstd
// frame. wait returns the result. Write has up to Options.Pending results to wait for, so that its
// caller can compress in parallel.
type Compressor func(plain []byte) (wait func() ([]byte, error))

// Serial returns a Compressor that compresses while Write waits.
func Serial(encode func(plain []byte) ([]byte, error)) Compressor {
	return func(plain []byte) func() ([]byte, error) {
		return func() ([]byte, error) { return encode(plain) }
	}
}

// Written describes a layer that was written.
type Written struct {
	Digest      chunk.ID          // SHA-256 of the blob
	Size        int64             // of the blob, in bytes
	DiffID      chunk.ID          // SHA-256 of the blob's tar
	PlainSize   int64             // of the blob's tar, in bytes
	Annotations map[string]string // of the layer's descriptor
}

// Write writes a tar of size bytes as a layer with a table of contents to out. It reads the tar
// once, and before that its headers at least twice if files are prioritized. The table is in
// memory: about 300 bytes a file. Write ends with ctx.
//
// The layer's tree is that of the tar, and eStargz' own files in the root, which its readers do not
// show. EStargz has these files in its tar, so its diffID differs from the SHA-256 of archive. That
// of the other formats is the same, unless there are prioritized files.
//
// An entry that a table cannot express is an error: a sparse file, a name that is not UTF-8, a
// global PAX header; in ContainersZstd a second entry of a path, too. The same arguments and
// results of c give the same bytes.
func Write(
	ctx context.Context, out io.Writer, archive io.ReaderAt, size int64, c Compressor, o Options,
) (Written, error) {
	w, err := write(ctx, out, archive, size, c, o)
	if err != nil {
		return Written{}, fmt.Errorf("write a layer with a table of contents: %w", err)
	}
	return w, nil
}

func write(
	ctx context.Context, out io.Writer, archive io.ReaderAt, size int64, c Compressor, o Options,
) (Written, error) {
	if o.Format < EStargz || o.Format > ContainersZstd {
		return Written{}, errors.New(o.Format.String())
	}
	if o.Chunk < 0 || o.Chunk > MaxChunk {
		return Written{}, fmt.Errorf("chunks of %d bytes, the limit is %d", o.Chunk, MaxChunk)
	}
	w := newWriter(ctx, out, archive, c, o)
	first, err := prioritize(ctx, archive, size, o.Prioritized)
	if err != nil {
		return Written{}, err
	}
	for _, it := range first.first {
		if err := w.entry(it); err != nil {
			return Written{}, fmt.Errorf("entry %q: %w", it.Name, err)
		}
	}
	if err := w.mark(len(first.first) > 0); err != nil {
		return Written{}, err
	}
	end := int64(0)
	err = eachItem(ctx, archive, size, func(it item) error {
		end = it.end
		if first.moved[cleanName(it.Name)] || o.Format.Hides(it.Name) {
			return nil
		}
		return w.entry(it)
	})
	if err != nil {
		return Written{}, err
	}
	if o.Format != EStargz {
		if err := w.copy(end, size-end); err != nil {
			return Written{}, err
		}
	}
	return w.finish()
}

// hasOwnFiles reports whether layers of the format have files that are not shown.
func (f Format) hasOwnFiles() bool { return f == EStargz || f == StargzZstd }

// isOwnFile reports whether a clean path is that of a file of the format.
func isOwnFile(name string) bool {
	return name == landmark || name == noLandmark || name == tableName
}

// writer writes a layer. Its plain bytes are cut into members: one for each chunk, with the headers
// that follow it.
type writer struct {
	queue
	archive io.ReaderAt
	options Options
	diff    tarSum
	split   *tarSplit // of ContainersZstd

	plain []byte    // of the next member
	chunk *tableRow // of the chunk at its begin, if there is one
	file  *tableRow // of the file that ends with the chunk, if its end is part of the table
}

// tarSum hashes and counts the bytes of the blob's tar.
type tarSum struct {
	hash.Hash
	n int64
}

func (t *tarSum) Write(b []byte) (int, error) {
	t.n += int64(len(b))
	return t.Hash.Write(b)
}

func newWriter(ctx context.Context, out io.Writer, archive io.ReaderAt, c Compressor, o Options) *writer {
	if o.Chunk == 0 {
		o.Chunk = defaultChunk
	}
	w := &writer{archive: archive, options: o, diff: tarSum{Hash: sha256.New()}}
	w.queue = queue{ctx: ctx, out: out, sum: sha256.New(), compress: c, most: max(o.Pending, 1)}
	if o.Format == ContainersZstd {
		w.split = newTarSplit()
	}
	return w
}

// append adds bytes of the tar.
func (w *writer) append(b []byte) {
	w.diff.Write(b)
	w.plain = append(w.plain, b...)
}

// cut ends a member.
func (w *writer) cut() error {
	if len(w.plain) == 0 {
		return nil
	}
	plain, m := w.plain, member{chunk: w.chunk, file: w.file}
	w.plain, w.chunk, w.file = nil, nil, nil
	return w.add(plain, m)
}

// copy adds n bytes of the archive, in members of a chunk's length.
func (w *writer) copy(from, n int64) error {
	for n > 0 {
		if len(w.plain) >= w.options.Chunk {
			if err := w.cut(); err != nil {
				return err
			}
		}
		now := min(n, int64(w.options.Chunk))
		if err := w.read(from, now); err != nil {
			return err
		}
		if w.split != nil {
			if err := w.split.add(w.plain[len(w.plain)-int(now):]); err != nil {
				return err
			}
		}
		from, n = from+now, n-now
	}
	return nil
}

// read adds n bytes of the archive to the next member.
func (w *writer) read(from, n int64) error {
	at := len(w.plain)
	w.plain = append(w.plain, make([]byte, n)...)
	if _, err := io.ReadFull(io.NewSectionReader(w.archive, from, n), w.plain[at:]); err != nil {
		return fmt.Errorf("read the tar at offset %d: %w", from, noEOF(err))
	}
	w.diff.Write(w.plain[at:])
	return nil
}

// entry adds an entry of the archive.
func (w *writer) entry(it item) error {
	if err := w.copy(it.begin, it.content-it.begin); err != nil {
		return err
	}
	r := w.begin(it.row())
	crc := newCRC()
	if it.Typeflag == tar.TypeReg {
		if err := w.content(it, r, crc); err != nil {
			return err
		}
	}
	if w.split != nil {
		if err := w.split.file(it, crc); err != nil {
			return err
		}
	}
	if err := w.table.done(r); err != nil {
		return err
	}
	return w.copy(it.content+it.Size, it.end-it.content-it.Size)
}

// content adds the content of a regular file, whose row is first. Each chunk begins a member. In
// ContainersZstd it is all of the member: its readers take the bytes up to the file's end.
func (w *writer) content(it item, first *tableRow, crc hash.Hash64) error {
	sum := sha256.New()
	isSplit := it.Size > int64(w.options.Chunk)
	r := first
	for at := int64(0); at < it.Size; at += int64(w.options.Chunk) {
		if at > 0 {
			r = w.begin(row{Type: typeChunk, Name: it.Name, ChunkOffset: at})
		}
		if err := w.cut(); err != nil {
			return err
		}
		r.waits++ // for its offset
		w.chunk = r
		if err := w.read(it.content+at, min(it.Size-at, int64(w.options.Chunk))); err != nil {
			return err
		}
		sum.Write(w.plain)
		crc.Write(w.plain)
		if isSplit {
			r.ChunkSize = int64(len(w.plain))
			r.ChunkDigest = digest(w.plain)
		}
		if r != first {
			if err := w.table.done(r); err != nil {
				return err
			}
		}
	}
	first.Digest = "sha256:" + chunk.ID(sum.Sum(nil)).String()
	if !isSplit && it.Size > 0 && w.options.Format.hasOwnFiles() {
		first.ChunkDigest = first.Digest
	}
	if it.Size == 0 || w.split == nil {
		return nil
	}
	first.waits++ // for its end
	w.file = first
	return w.cut()
}

// mark adds the landmark behind the prioritized files. If there are none, a layer in zstd has no
// landmark, so that its tar stays as it is.
func (w *writer) mark(hasFirst bool) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: noLandmark, Size: 1, Mode: 0o644}
	if hasFirst {
		h.Name = landmark
	}
	if !w.options.Format.hasOwnFiles() || !hasFirst && w.options.Format == StargzZstd {
		return nil
	}
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	w.append(b.Bytes())
	if err := w.cut(); err != nil {
		return err
	}
	content := []byte{0xf} // as in stargz-snapshotter
	sum := digest(content)
	r := w.begin(row{Type: "reg", Name: h.Name, Mode: h.Mode, Size: 1, Digest: sum, ChunkDigest: sum})
	r.waits++
	w.chunk = r
	w.append(append(content, make([]byte, tarBlock-1)...))
	return w.table.done(r)
}
