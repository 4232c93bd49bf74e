package startup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sort"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/index"
	"lighter/format/trace"
)

// Tree is an image's tree, as its index has it.
type Tree struct {
	metadata *erofs.Image
	extents  *index.Map
}

// NewTree returns the tree with that metadata image and extent map.
func NewTree(metadata *erofs.Image, extents *index.Map) *Tree {
	return &Tree{metadata: metadata, extents: extents}
}

// span is a run of bytes, of the device or of a file.
type span struct{ from, to int64 }

// placed is a file on the device.
type placed struct {
	path string
	span
}

// Record says which files a trace has read. Where files share a place on the
// device, it names the first. What is beyond the bounds of a recording is left
// out, from the end.
func (t *Tree) Record(ctx context.Context, tr trace.Trace) (trace.Recording, error) {
	files, err := t.under(ctx, tr.Reads)
	if err != nil {
		return trace.Recording{}, fmt.Errorf("find the files of a trace: %w", err)
	}
	r := trace.Recording{Starts: 1}
	left := maxRecording
	for _, read := range tr.Reads {
		end := read.Offset + read.Length
		i := sort.Search(len(files), func(i int) bool { return files[i].to > read.Offset })
		for ; i < len(files) && files[i].from < end; i++ {
			f := files[i]
			part := span{max(read.Offset, f.from), min(end, f.to)}
			before := 0
			if n := len(r.Entries); n > 0 && follows(&r.Entries[n-1], f, part) {
				before = textSize(&r.Entries[n-1])
				r.Entries[n-1].Length += part.to - part.from
			} else {
				r.Entries = append(r.Entries, trace.Entry{At: read.At, Path: f.path, Offset: part.from - f.from, Length: part.to - part.from})
			}
			last := &r.Entries[len(r.Entries)-1]
			if err := t.nameChunks(last, part); err != nil {
				return trace.Recording{}, err
			}
			if left -= textSize(last) - before; left < 0 || len(r.Entries) > trace.MaxEntries {
				r.Entries = r.Entries[:len(r.Entries)-1]
				return r, nil
			}
		}
	}
	return r, nil
}

// follows tells whether a part of a file begins where the entry ends.
func follows(e *trace.Entry, f placed, part span) bool {
	return e.Path == f.path && e.Offset+e.Length == part.from-f.from
}

// nameChunks appends the chunks in a part of the device to an entry.
func (t *Tree) nameChunks(e *trace.Entry, part span) error {
	return t.each(part, func(_ int64, x index.Extent) bool {
		if n := len(e.Chunks); n == 0 || e.Chunks[n-1] != x.ID {
			e.Chunks = append(e.Chunks, x.ID)
		}
		return len(e.Chunks) < maxRecording/(2*chunk.Size)
	})
}

// each calls fn for the extents in a part of the device until it returns false.
func (t *Tree) each(part span, fn func(i int64, x index.Extent) bool) error {
	i, err := t.extents.Find(part.from)
	if err != nil {
		return err
	}
	for ; i < t.extents.Extents; i++ {
		x, err := t.extents.Extent(i)
		if err != nil {
			return err
		}
		if x.Offset >= part.to || !fn(i, x) {
			return nil
		}
	}
	return nil
}

// under returns the files that reads have touched, in the order of the device.
func (t *Tree) under(ctx context.Context, reads []trace.Read) ([]placed, error) {
	spans := joined(reads)
	var files []placed
	_, err := t.metadata.Walk(ctx, func(path string, in erofs.Inode) error {
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

// joined returns what reads cover, sorted and without overlap.
func joined(reads []trace.Read) []span {
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

// use is a chunk that a start wants.
type use struct {
	extent int64 // one that has the chunk
	ref    chunk.Ref
}

// uses resolves recordings in the tree: for each, the chunks in order of first
// use, each once. A file that is not there any more counts by its chunks, if some
// file has them.
func (t *Tree) uses(ctx context.Context, recordings []trace.Recording) ([][]use, error) {
	r := resolver{Tree: t, finder: t.metadata.Finder(), places: map[string]placed{}}
	out := make([][]use, len(recordings))
	for i := range recordings {
		uses, err := r.uses(ctx, &recordings[i])
		if err != nil {
			return nil, fmt.Errorf("find what a recording names: %w", err)
		}
		out[i] = uses
	}
	return out, r.findMoved(ctx, out)
}

// resolver finds what recordings name.
type resolver struct {
	*Tree
	finder *erofs.Finder
	places map[string]placed // of paths; an empty span: not a file on the device
}

// unplaced is the extent of a chunk of which the place is to be found.
const unplaced = -1

func (r *resolver) uses(ctx context.Context, recording *trace.Recording) ([]use, error) {
	var out []use
	seen := map[chunk.ID]bool{}
	left := int64(maxWorkload)
	add := func(extent int64, ref chunk.Ref) bool {
		if !seen[ref.ID] {
			seen[ref.ID] = true
			out = append(out, use{extent, ref})
			left -= int64(ref.Length)
		}
		return left > 0
	}
	for i := range recording.Entries {
		e := &recording.Entries[i]
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f, err := r.place(e.Path)
		if err != nil {
			return nil, err
		}
		if f.to == f.from {
			for _, id := range e.Chunks {
				add(unplaced, chunk.Ref{ID: id})
			}
			continue
		}
		part := span{f.from + min(e.Offset, f.to-f.from), f.from + min(e.Offset+e.Length, f.to-f.from)}
		err = r.each(part, func(i int64, x index.Extent) bool { return add(i, chunk.Ref{ID: x.ID, Length: x.Length}) })
		if err != nil || left <= 0 {
			return out, err
		}
	}
	return out, nil
}

// place finds a file on the device.
func (r *resolver) place(path string) (placed, error) {
	if f, known := r.places[path]; known {
		return f, nil
	}
	f := placed{path: path}
	in, err := r.finder.Find(path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return f, err
	case err == nil && in.Device:
		f.span = span{int64(in.Address), int64(in.Address) + in.Size}
	}
	r.places[path] = f
	return f, nil
}

// findMoved places the chunks of files that are gone, as far as the tree has them,
// and drops the others.
func (r *resolver) findMoved(ctx context.Context, all [][]use) error {
	moved := map[chunk.ID]use{}
	for _, uses := range all {
		for _, u := range uses {
			if u.extent == unplaced {
				moved[u.ref.ID] = u
			}
		}
	}
	for i := int64(0); i < r.extents.Extents && len(moved) > 0; i++ {
		x, err := r.extents.Extent(i)
		if err != nil {
			return err
		}
		if u, wanted := moved[x.ID]; wanted && u.extent == unplaced {
			moved[x.ID] = use{i, chunk.Ref{ID: x.ID, Length: x.Length}}
		}
		if i%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	for i, uses := range all {
		for j := range uses {
			if uses[j].extent == unplaced {
				uses[j] = moved[uses[j].ref.ID]
			}
		}
		all[i] = slices.DeleteFunc(uses, func(u use) bool { return u.extent == unplaced })
	}
	return nil
}
