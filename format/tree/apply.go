package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"lighter/format/chunk"
)

// A LayerSource gives the entries of one layer in their order, and io.EOF
// after the last. What it gave is the receiver's to keep.
type LayerSource interface {
	Next() (*Entry, error)
}

// maxSteps bounds the names that are looked up for one chain. A chain of a
// million entries takes some ten million; links upon links could ask for
// thousands of times as many.
const maxSteps = 1 << 28

// maxKept bounds the bytes that a chain's entries leave in memory: names, link
// targets, extended attributes, inline contents and lists of chunks, of what is
// replaced later too. A million entries have some 100 MB.
const maxKept = 1 << 30

// extentMemory is what an Extent takes, in bytes.
const extentMemory = chunk.Size + 8

// budget is what a chain has left of its limits, and of its time.
type budget struct {
	ctx context.Context // of the one Apply that the budget is for

	limit, entries int64
	steps          int64
	kept           int64
}

// entry counts one entry, or one directory that an entry makes on its way.
func (b *budget) entry() error {
	if b.entries++; b.limit > 0 && b.entries > b.limit {
		return &LimitError{What: "entries", Limit: b.limit}
	}
	return nil
}

// stepsUnseen is how many steps are taken until the next look at the context: some
// milliseconds.
const stepsUnseen = 1 << 14

// step counts a name that is looked up, a node that is visited.
func (b *budget) step() error {
	if b.steps++; b.steps > maxSteps {
		return &LimitError{What: "names to look up", Limit: maxSteps}
	}
	if b.steps%stepsUnseen == 0 {
		return b.ctx.Err()
	}
	return nil
}

// keep counts bytes that stay in memory as long as the tree.
func (b *budget) keep(n int64) error {
	if b.kept += n; b.kept > maxKept {
		return &LimitError{What: "bytes of names, links, attributes and small files", Limit: maxKept}
	}
	return nil
}

// Apply merges the layers of a chain, the lowest first. Each is read once, to
// its end, before the next. An entry that containerd would not unpack is an
// *EntryError, and one beyond the limits is one that wraps a *LimitError;
// errors of a LayerSource are passed on.
//
// The tree takes about 260 bytes of memory an entry, of which Limits has the
// number, and at most 1 GiB for what entries bring with them: names, link targets,
// attributes, inline contents, lists of chunks. Beyond that is a *LimitError too.
func Apply(ctx context.Context, layers []LayerSource, limits Limits) (*Tree, error) {
	if len(layers) == 0 {
		return nil, errors.New("a chain of no layers")
	}
	b := &budget{ctx: ctx, limit: limits.Entries}
	var volumes []*volume // topmost first
	for i, layer := range layers {
		u := newUnpacker(b, volumes)
		if err := u.layer(ctx, layer); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err() // it is no fault of the entry
			}
			var refused *EntryError
			if errors.As(err, &refused) {
				refused.Layer = i
				return nil, refused
			}
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		u.seal()
		volumes = slices.Insert(volumes, 0, u.volume)
	}
	return merge(b, volumes)
}

// layer unpacks all entries of one layer.
func (u *unpacker) layer(ctx context.Context, layer LayerSource) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, err := layer.Next()
		if err == io.EOF {
			return u.finish()
		}
		if err != nil {
			return err
		}
		if err := u.unpack(e); err != nil {
			return &EntryError{Entry: e.Name, Err: err}
		}
	}
}
