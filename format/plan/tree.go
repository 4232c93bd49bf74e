package plan

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/index"
	"lighter/format/trace"
)

// Tree is an image's tree, read through its index.
type Tree struct {
	metadata *erofs.Image
	extents  *index.Map
}

// NewTree returns the tree with that metadata image and extent map.
func NewTree(metadata *erofs.Image, extents *index.Map) *Tree {
	return &Tree{metadata: metadata, extents: extents}
}

// span is a range of the device, in bytes.
type span struct{ from, to int64 }

// Recording returns the recording of a trace, truncated to the bounds of a recording.
func (t *Tree) Recording(ctx context.Context, tr trace.Trace) (trace.Recording, error) {
	return tr.Recording(ctx, t.metadata, t.extents, maxRecording)
}

// use is a chunk that a start reads.
type use struct {
	extent int64 // the number of an extent with the chunk
	ref    chunk.Ref
}

// uses resolves recordings in the tree. For each it returns the chunks in order of first use, each
// once. If a file is missing, its chunks are looked up in the other files.
func (t *Tree) uses(ctx context.Context, recordings []trace.Recording) ([][]use, error) {
	r := resolver{Tree: t, finder: t.metadata.Finder(), places: map[string]span{}}
	out := make([][]use, len(recordings))
	for i := range recordings {
		uses, err := r.uses(ctx, &recordings[i])
		if err != nil {
			return nil, fmt.Errorf("resolve a recording: %w", err)
		}
		out[i] = uses
	}
	return out, r.findMoved(ctx, out)
}

// Known returns the recordings that name files or chunks of the tree.
func (t *Tree) Known(ctx context.Context, recordings []trace.Recording) (known []trace.Recording, err error) {
	for i := range recordings { // one by one: there may be hundreds
		uses, err := t.uses(ctx, recordings[i:i+1])
		if err != nil {
			return nil, err
		}
		if len(uses[0]) > 0 {
			known = append(known, recordings[i])
		}
	}
	return known, nil
}

// resolver finds the files and chunks that recordings name.
type resolver struct {
	*Tree
	finder *erofs.Finder
	places map[string]span // device ranges of files, by path; empty: no file on the device
}

// unplaced is the extent of a chunk whose place is not known yet.
const unplaced = -1

func (r *resolver) uses(ctx context.Context, recording *trace.Recording) ([]use, error) {
	var out []use
	seen := map[chunk.ID]bool{}
	left, looks := int64(maxWorkloadBytes), maxExtents
	add := func(extent int64, ref chunk.Ref) bool {
		if !seen[ref.ID] {
			seen[ref.ID] = true
			out = append(out, use{extent, ref})
			left -= int64(ref.Length)
		}
		looks--
		return left > 0 && looks > 0
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
		from, to := f.from+min(e.Offset, f.to-f.from), f.from+min(e.Offset+e.Length, f.to-f.from)
		err = r.extents.Range(from, to, func(i int64, x index.Extent) bool {
			return add(i,
				chunk.Ref{ID: x.ID, Length: x.Length})
		})
		if err != nil || left <= 0 || looks <= 0 {
			return out, err
		}
	}
	return out, nil
}

// place returns the device range of a file.
func (r *resolver) place(path string) (at span, err error) {
	if at, known := r.places[path]; known {
		return at, nil
	}
	in, err := r.finder.Find(path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return at, err
	case err == nil && in.Device:
		at = span{int64(in.Address), int64(in.Address) + in.Size}
	}
	r.places[path] = at
	return at, nil
}

// findMoved finds the chunks of missing files in other files of the tree, and drops the chunks that
// the tree does not have.
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
