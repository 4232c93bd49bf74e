package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"strings"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/tree"
	"lighter/hub/encoder"
	"lighter/hub/oci"
)

// splitLayer is a layer that was read to its end and verified.
type splitLayer struct {
	record  string // path of its compressed record
	bytes   int64  // of the tar stream
	entries int64
	chunks  []uint32 // positions in the staging, with repetitions
}

// layerReader reads a layer's blob: bytes → tar stream → entries and chunks. It computes the
// digests of the blob and of the tar stream at the same time.
type layerReader struct {
	layer  oci.Layer // what check expects
	limits tree.Limits
	onRead func(n int)                          // receives progress in bytes of the blob
	keep   func(id chunk.ID, data []byte) error // receives each chunk
	record *tree.RecordWriter

	blobSum, tarSum   hash.Hash // SHA-256
	blobSize, tarSize int64
	entries           int64
	contents          tree.ContentReader
}

// run reads the blob. Two goroutines in group read and decompress it; they end with ctx.
func (l *layerReader) run(ctx context.Context, group *errgroup.Group, blob io.Reader) error {
	l.blobSum, l.tarSum = sha256.New(), sha256.New()
	raw := newReadAhead(ctx, func(b []byte) {
		l.blobSize += int64(len(b))
		l.onRead(len(b))
	})
	group.Go(func() error { return raw.fill(io.TeeReader(blob, l.blobSum)) })
	tar := newReadAhead(ctx, func(b []byte) {
		l.tarSum.Write(b)
		l.tarSize += int64(len(b))
	})
	group.Go(func() error {
		if oci.KindOf(l.layer.MediaType) == oci.Tar {
			return tar.fill(raw)
		}
		z, err := compress.Layer(raw)
		if err != nil {
			return err
		}
		defer z.Close()
		return tar.fill(z)
	})
	return tree.Scan(tar, l.limits, l.content, l.emit)
}

// check compares what was read with the manifest and the config.
func (l *layerReader) check() error {
	if err := l.checkBlob(); err != nil {
		return err
	}
	if got := digestOf(l.tarSum); got != l.layer.DiffID {
		return fmt.Errorf("its diffID is %s, the image's config says %s", got, l.layer.DiffID)
	}
	return nil
}

// checkBlob compares the blob with the manifest. At the end of the tar stream all of the blob has
// been read.
func (l *layerReader) checkBlob() error {
	if l.blobSize != l.layer.Size {
		return fmt.Errorf("its blob has %d bytes, the manifest says %d", l.blobSize, l.layer.Size)
	}
	if got := digestOf(l.blobSum); got != l.layer.Digest {
		return corruptError(got)
	}
	return nil
}

func corruptError(digest string) error {
	return fmt.Errorf("its blob is corrupt: the digest of its bytes is %s", digest)
}

func (l *layerReader) content(e *tree.Entry, r io.Reader) error { return l.contents.Read(e, r, l.keep) }

func (l *layerReader) emit(e *tree.Entry) error {
	l.entries++
	if err := l.record.Add(e); err != nil {
		return fmt.Errorf("record entry %q: %w", e.Name, err)
	}
	return nil
}

// split reads a layer, stages its new chunks and its record, and fills result. The caller checks
// the layer.
func (s *staging) split(
	ctx context.Context, l *layerReader, e *encoder.Pool, result *splitLayer, blob io.Reader,
) error {
	result.record = s.path("layer-" + strings.TrimPrefix(l.layer.DiffID, "sha256:"))
	record, err := createRecord(result.record)
	if err != nil {
		return err
	}
	defer record.Close()
	group, ctx := errgroup.WithContext(ctx)
	units := newUnitWriter(ctx, group, s, e)
	l.record = record.RecordWriter
	l.keep = func(id chunk.ID, data []byte) error {
		position, isNew := s.list(id, uint32(len(data)))
		result.chunks = append(result.chunks, position)
		if !isNew {
			return nil
		}
		return units.add(id, data, position)
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
		return fmt.Errorf("stage a layer record: %w", err)
	}
	return nil
}

// verify reads a layer for its digests and its record, and checks it.
func (l *layerReader) verify(ctx context.Context, blob io.Reader, record *tree.RecordWriter) error {
	l.record = record
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.run(ctx, group, blob) })
	if err := group.Wait(); err != nil {
		return err
	}
	return l.check()
}

// VerifyLayer reads a layer's blob, checks its digests, and writes its record to a new file. It
// calls keep with each chunk.
func VerifyLayer(
	ctx context.Context, l oci.Layer, blob io.Reader, limits tree.Limits, record string, onRead func(n int), keep Keep,
) error {
	file, err := createRecord(record)
	if err != nil {
		return err
	}
	defer file.Close()
	reader := &layerReader{layer: l, limits: limits, onRead: onRead, keep: keep}
	if err := reader.verify(ctx, blob, file.RecordWriter); err != nil {
		return err
	}
	if err := file.finish(); err != nil {
		return err
	}
	return file.file.Sync()
}

func digestOfReader(r io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return "", err
	}
	return digestOf(sum), nil
}

func digestOf(sum hash.Hash) string { return "sha256:" + hex.EncodeToString(sum.Sum(nil)) }
