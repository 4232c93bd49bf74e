package ingest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/tree"
	"lighter/hub/encoder"
)

// splitLayer is a layer that was read to its end: its digests are verified and
// its entries written down.
type splitLayer struct {
	record  string // path of its record, zstd-compressed
	bytes   int64  // of the tar stream
	entries int64
	places  []uint32 // of its chunks, as claimed, repetitions included
}

// layerReader reads one layer from its blob: bytes → decompressed → entries and
// chunks, with both digests.
type layerReader struct {
	layer  layer
	limits tree.Limits
	read   func(n int) // is told how many bytes of the blob were read
	keep   func(id chunk.ID, data []byte) error
	record *tree.RecordWriter

	blobSum, tarSum   hash.Hash
	blobSize, tarSize int64
	entries           int64
	splitter          chunk.Splitter
}

// run reads the blob. Reading it and decompressing it have goroutines of their
// own in group, which end with its context.
func (l *layerReader) run(ctx context.Context, group *errgroup.Group, blob io.Reader) error {
	l.blobSum, l.tarSum = sha256.New(), sha256.New()
	raw := newReadAhead(ctx, func(b []byte) { l.read(len(b)) })
	group.Go(func() error { return raw.fill(&summed{r: blob, sum: l.blobSum, n: &l.blobSize}) })
	tar := newReadAhead(ctx, func(b []byte) {
		l.tarSum.Write(b)
		l.tarSize += int64(len(b))
	})
	group.Go(func() error {
		z, err := decompress(raw, compressionOf(l.layer.MediaType))
		if err != nil {
			return tar.fill(failing{err})
		}
		defer z.Close()
		return tar.fill(z)
	})
	if err := tree.Scan(tar, l.limits, l.content, l.emit); err != nil {
		return err
	}
	if err := l.checkBlob(); err != nil {
		return err
	}
	if got := digestOf(l.tarSum); got != l.layer.DiffID {
		return fmt.Errorf("its diffID is %s, the image's config says %s", got, l.layer.DiffID)
	}
	return nil
}

// checkBlob compares what was read with what the manifest says. Whoever has
// reached the end of the decompressed bytes has read all of the blob.
func (l *layerReader) checkBlob() error {
	if l.blobSize != l.layer.Size {
		return fmt.Errorf("its blob has %d bytes, the manifest says %d", l.blobSize, l.layer.Size)
	}
	if got := digestOf(l.blobSum); got != l.layer.Digest {
		return corrupt(got)
	}
	return nil
}

func corrupt(digest string) error {
	return fmt.Errorf("its blob is corrupt: the digest of its bytes is %s", digest)
}

// content reads a file: small ones whole, others chunk by chunk.
func (l *layerReader) content(e *tree.Entry, r io.Reader) error {
	if e.Size <= tree.InlineLimit {
		e.Content.Inline = make([]byte, e.Size)
		_, err := io.ReadFull(r, e.Content.Inline)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return l.splitter.Split(r, e.Size, func(data []byte, zeros int64) error {
		if data == nil {
			e.Content.Extents = append(e.Content.Extents, tree.Extent{Length: zeros})
			return nil
		}
		id := chunk.Sum(data)
		e.Content.Extents = append(e.Content.Extents, tree.Extent{ID: id, Length: int64(len(data))})
		return l.keep(id, data)
	})
}

func (l *layerReader) emit(e *tree.Entry) error {
	l.entries++
	if err := l.record.Add(e); err != nil {
		return fmt.Errorf("record entry %q: %w", e.Name, err)
	}
	return nil
}

// split reads a layer, stages what is new in it, and fills result.
func (s *staging) split(ctx context.Context, l *layerReader, e *encoder.Pool, result *splitLayer, blob io.Reader) error {
	result.record = s.path("layer-" + hexOf(l.layer.DiffID))
	record, err := createRecord(result.record)
	if err != nil {
		return err
	}
	defer record.Close()
	group, ctx := errgroup.WithContext(ctx)
	units := newUnitWriter(ctx, group, s, e)
	l.record = record.RecordWriter
	l.keep = func(id chunk.ID, data []byte) error {
		place, fresh := s.claim(id, uint32(len(data)))
		result.places = append(result.places, place)
		if !fresh {
			return nil
		}
		return units.add(id, data, place)
	}
	group.Go(func() error {
		defer units.close()
		return l.run(ctx, group, blob)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	result.bytes, result.entries = l.tarSize, l.entries
	if err := record.finish(); err != nil {
		return err
	}
	if err := record.file.Sync(); err != nil {
		return fmt.Errorf("stage a layer's record: %w", err)
	}
	return nil
}

// verify reads a layer for its digests and its record; nothing of it is kept.
func (l *layerReader) verify(ctx context.Context, blob io.Reader, record *tree.RecordWriter) error {
	l.record = record
	l.keep = func(chunk.ID, []byte) error { return nil }
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.run(ctx, group, blob) })
	return group.Wait()
}

// recordFile is a layer record that is being written.
type recordFile struct {
	*tree.RecordWriter
	z    *zstd.Encoder
	b    *bufio.Writer
	file *os.File
}

func createRecord(path string) (*recordFile, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("stage a layer's record: %w", err)
	}
	b := bufio.NewWriterSize(file, 64<<10)
	z := compress.RecordEncoder(b)
	return &recordFile{tree.NewRecordWriter(z), z, b, file}, nil
}

func (r *recordFile) finish() error {
	for _, step := range []func() error{r.RecordWriter.Close, r.z.Close, r.b.Flush} {
		if err := step(); err != nil {
			return fmt.Errorf("stage a layer's record: %w", err)
		}
	}
	return nil
}

// Close closes the file, finished or not.
func (r *recordFile) Close() error { return r.file.Close() }

// summed hashes and counts what is read through it.
type summed struct {
	r   io.Reader
	sum hash.Hash
	n   *int64
}

func (s *summed) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.sum.Write(b[:n])
	*s.n += int64(n)
	return n, err
}

// failing is a reader that gives nothing but an error.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func digestOfReader(r io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.CopyBuffer(sum, r, make([]byte, readAheadBlock)); err != nil {
		return "", err
	}
	return digestOf(sum), nil
}

func digestOf(sum hash.Hash) string { return "sha256:" + hex.EncodeToString(sum.Sum(nil)) }
