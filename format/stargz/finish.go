package stargz

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"lighter/format/chunk"
)

// finish writes the table and the footer.
func (w *writer) finish() (Written, error) {
	if err := errors.Join(w.cut(), w.flush()); err != nil {
		return Written{}, err
	}
	var annotations map[string]string
	var err error
	switch w.options.Format {
	case EStargz:
		annotations, err = w.finishGzip()
	case StargzZstd:
		annotations, err = w.finishZstd()
	default:
		annotations, err = w.finishContainers()
	}
	if err != nil {
		return Written{}, fmt.Errorf("the table: %w", err)
	}
	return Written{Digest: chunk.ID(w.sum.Sum(nil)), Size: w.offset, DiffID: chunk.ID(w.diff.Sum(nil)),
		PlainSize: w.diff.n, Annotations: annotations}, nil
}

// finishGzip writes the table as the last file of the tar.
func (w *writer) finishGzip() (map[string]string, error) {
	text := w.table.finish("]}")
	var archive bytes.Buffer
	t := tar.NewWriter(&archive)
	err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: tableName, Size: int64(len(text)), Mode: 0o644})
	if err != nil {
		return nil, err
	}
	if _, err := t.Write(text); err != nil {
		return nil, err
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	offset := w.offset
	w.diff.Write(archive.Bytes())
	if err := errors.Join(w.add(archive.Bytes(), member{}), w.flush()); err != nil {
		return nil, err
	}
	return map[string]string{TableDigest: digest(text)}, w.write(extraFields[0].footer(offset))
}

// footer returns the footer with an offset.
func (f extraField) footer(offset int64) []byte {
	size, _ := f.size()
	b := []byte{0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff}
	b = binary.LittleEndian.AppendUint16(b, uint16(size))
	b = fmt.Appendf(b, "%s%0*x%s", f.prefix, offsetSize, offset, f.magic)
	return append(b, emptyMember...)
}

// finishZstd writes the table in a skippable frame.
func (w *writer) finishZstd() (map[string]string, error) {
	text := w.table.finish("]}")
	annotations := map[string]string{TableDigest: digest(text)}
	place, err := w.compressed(text, annotations, Position, Checksum)
	if err != nil {
		return nil, err
	}
	return annotations, w.skippable(appendNumbers(place, stargzMagic))
}

// finishContainers writes the table and the tar-split, each in a skippable frame. The table has the
// digest of the tar-split.
func (w *writer) finishContainers() (map[string]string, error) {
	stored, plain, err := w.split.finish()
	if err != nil {
		return nil, fmt.Errorf("tar-split: %w", err)
	}
	text := w.table.finish(`],"tarSplitDigest":"` + digest(stored) + `"}`)
	annotations := map[string]string{}
	place, err := w.compressed(text, annotations, ContainersPosition, ContainersChecksum)
	if err != nil {
		return nil, err
	}
	split := []int64{w.offset + skippableHeader, int64(len(stored)), plain}
	annotations[tarSplitPosition] = fmt.Sprintf("%d:%d:%d", split[0], split[1], split[2])
	if err := w.skippable(stored); err != nil {
		return nil, err
	}
	return annotations, w.skippable(appendNumbers(append(place, split...), containersMagic))
}

// compressed writes the table, annotates its place and the digest of its stored bytes, and returns
// the numbers of the footer.
func (w *writer) compressed(text []byte, annotations map[string]string, place, sum string) ([]int64, error) {
	stored, err := w.compress(text)()
	if err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	offset := w.offset + skippableHeader
	if err := w.skippable(stored); err != nil {
		return nil, err
	}
	numbers := []int64{offset, int64(len(stored)), int64(len(text)), 1}
	annotations[place] = fmt.Sprintf("%d:%d:%d:1", offset, len(stored), len(text))
	annotations[sum] = digest(stored)
	return numbers, nil
}

// skippable writes a skippable frame.
func (w *writer) skippable(content []byte) error {
	if int64(len(content)) > math.MaxUint32 {
		return fmt.Errorf("a frame of %d bytes", len(content))
	}
	header := binary.LittleEndian.AppendUint32(bytes.Clone(skippableMagic), uint32(len(content)))
	return errors.Join(w.write(header), w.write(content))
}

// appendNumbers returns a footer of zstd:chunked.
func appendNumbers(numbers []int64, magic string) (footer []byte) {
	for _, n := range numbers {
		footer = binary.LittleEndian.AppendUint64(footer, uint64(n))
	}
	return append(footer, magic...)
}

// digest returns the digest of b as annotations and tables have it.
func digest(b []byte) string { return "sha256:" + chunk.Sum(b).String() }
