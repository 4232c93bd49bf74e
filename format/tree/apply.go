package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"lighter/format/chunk"
)

// LayerSource reads the entries of one layer.
type LayerSource interface {
	// Next returns the next entry, which the caller may keep, or io.EOF after the last one.
	Next() (*Entry, error)
}

const (
	// maxSteps bounds the name lookups of a chain. A million entries need about ten million; links
	// to links could need thousands of times as many.
	maxSteps = 1 << 28
	// maxKept bounds the bytes that a chain's entries leave in memory: names, link targets,
	// extended attributes, inline contents and lists of chunks, including those of replaced files.
	// A million entries have about 100 MB.
	maxKept = 1 << 30
	// extentMemory is the size of an Extent in bytes.
	extentMemory = chunk.Size + 8
	// checkEvery is the number of steps between checks of the context: some milliseconds.
	checkEvery = 1 << 14
)

// budget counts the resources of one Apply.
type budget struct {
	ctx context.Context // of Apply

	limit, entries int64
	steps          int64
	kept           int64
}

// entry counts an entry, or a parent directory that has no entry.
func (b *budget) entry() error {
	if b.entries++; b.limit > 0 && b.entries > b.limit {
		return &LimitError{What: "entries", Limit: b.limit}
	}
	return nil
}

// step counts a name lookup or a visited node.
func (b *budget) step() error {
	if b.steps++; b.steps > maxSteps {
		return &LimitError{What: "name lookups", Limit: maxSteps}
	}
	if b.steps%checkEvery == 0 {
		return b.ctx.Err()
	}
	return nil
}

// keep counts bytes that stay in memory with the tree.
func (b *budget) keep(n int64) error {
	if b.kept += n; b.kept > maxKept {
		return &LimitError{What: "bytes of names, links, attributes and small files", Limit: maxKept}
	}
	return nil
}

// Apply merges the layers of a chain, the lowest first. It reads each layer once, to its end,
// before the next. The error is an *EntryError for an entry that containerd would not unpack, and
// wraps a *LimitError if the chain exceeds a limit. An error of a LayerSource is wrapped, too.
//
// The tree takes about 260 bytes of memory an entry, and at most 1 GiB for names, link targets,
// attributes, inline contents and lists of chunks. Limits bounds the number of entries.
func Apply(ctx context.Context, layers []LayerSource, limits Limits) (*Tree, error) {
	if len(layers) == 0 {
		return nil, errors.New("a chain without layers")
	}
	b := &budget{ctx: ctx, limit: limits.Entries}
	var volumes []*volume // topmost first
	for i, layer := range layers {
		u := newUnpacker(b, volumes)
		if err := u.layer(ctx, layer); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err() // not an error of the entry
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
