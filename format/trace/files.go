package trace

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/index"
)

// span is a range of the device, in bytes.
type span struct{ from, to int64 }

// placed is a file with its place on the device.
type placed struct {
	path string
	span
}

// Recording returns the recording of a trace: ranges of files, in the order of reading. metadata
// and extents are the two parts of the index of the trace's tree. Files with the same contents
// share a place on the device. Of these, the recording names the one that metadata.Walk finds
// first. A recording is truncated if it exceeds limit bytes as text, or MaxEntries.
//
// It reads the whole metadata image. Errors wrap erofs.ErrInvalid, or come from reading the index
// or from ctx.
func (t Trace) Recording(ctx context.Context, metadata *erofs.Image, extents *index.Map, limit int) (Recording, error) {
	files, err := filesIn(ctx, t.Reads, metadata)
	if err != nil {
		return Recording{}, fmt.Errorf("find files of trace: %w", err)
	}
	r := Recording{Starts: 1}
	for _, read := range t.Reads {
		end := read.Offset + read.Length
		i := sort.Search(len(files), func(i int) bool { return files[i].to > read.Offset })
		for ; i < len(files) && files[i].from < end; i++ {
			f := files[i]
			part := span{max(read.Offset, f.from), min(end, f.to)}
			before := 0
			if n := len(r.Entries); n > 0 && r.Entries[n-1].continues(f, part) {
				before = r.Entries[n-1].Size()
				r.Entries[n-1].Length += part.to - part.from
			} else {
				r.Entries = append(r.Entries, Entry{At: read.At, Path: f.path, Offset: part.from - f.from,
					Length: part.to - part.from})
			}
			last := &r.Entries[len(r.Entries)-1]
			if err := last.nameChunks(extents, part, limit); err != nil {
				return Recording{}, err
			}
			if limit -= last.Size() - before; limit < 0 || len(r.Entries) > MaxEntries {
				r.Entries = r.Entries[:len(r.Entries)-1]
				return r, nil
			}
		}
	}
	return r, nil
}

// continues reports whether a part of a file begins where the entry ends.
func (e *Entry) continues(f placed, part span) bool {
	return e.Path == f.path && e.Offset+e.Length == part.from-f.from
}

// nameChunks appends the chunks in a part of the device to the entry, until the chunks alone exceed
// limit bytes as text.
func (e *Entry) nameChunks(extents *index.Map, part span, limit int) error {
	return extents.Range(part.from, part.to, func(_ int64, x index.Extent) bool {
		if n := len(e.Chunks); n == 0 || e.Chunks[n-1] != x.ID {
			e.Chunks = append(e.Chunks, x.ID)
		}
		return len(e.Chunks) <= limit/(2*chunk.Size)
	})
}

// filesIn returns the files that the reads overlap, in the order of the device.
func filesIn(ctx context.Context, reads []Read, metadata *erofs.Image) ([]placed, error) {
	spans := joined(reads)
	var files []placed
	_, err := metadata.Walk(ctx, func(path string, in erofs.Inode) error {
		if !in.Device {
			return nil
		}
		f := placed{path, span{int64(in.Address), int64(in.Address) + in.Size}}
		i := sort.Search(len(spans), func(i int) bool { return spans[i].to > f.from })
		if i < len(spans) && spans[i].from < f.to {
			files = append(files, f)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(files, func(a, b placed) int { return cmp.Compare(a.from, b.from) })
	return slices.CompactFunc(files, func(a, b placed) bool { return a.from == b.from }), nil
}

// joined returns the ranges of reads, sorted and without overlap.
func joined(reads []Read) []span {
	spans := make([]span, 0, len(reads))
	for _, r := range reads {
		spans = append(spans, span{r.Offset, r.Offset + r.Length})
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	out := spans[:0]
	for _, s := range spans {
		if n := len(out); n > 0 && s.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, s.to)
		} else {
			out = append(out, s)
		}
	}
	return out
}
