package trace

import (
	"cmp"
	"context"
	"slices"
	"sort"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/index"
)

// Files says which files of its tree the trace is of, in the order of reading, by
// the parts of the tree's index. Of the names that a file has, or identical files
// have, it says one. Reads of nothing but what lies between files are left out.
//
// It goes through the whole metadata image. Errors are erofs.ErrInvalid (wrapped),
// those of reading either part, or the context's.
func (t Trace) Files(ctx context.Context, metadata *erofs.Image, extents *index.Map) (Recording, error) {
	read := ranges(t.Reads)
	var files []file
	_, err := metadata.Walk(ctx, func(path string, in erofs.Inode) error {
		if !in.Device {
			return nil
		}
		from := int64(in.Address)
		to := from + (in.Size+page-1)/page*page
		if i := sort.Search(len(read), func(i int) bool { return read[i].to > from }); i < len(read) && read[i].from < to {
			files = append(files, file{span{from, to}, path})
		}
		return nil
	})
	if err != nil {
		return Recording{}, err
	}
	slices.SortStableFunc(files, func(a, b file) int { return cmp.Compare(a.from, b.from) })
	files = slices.CompactFunc(files, func(a, b file) bool { return a.from == b.from })
	r := Recording{Starts: 1}
	for _, one := range t.Reads {
		end := one.Offset + one.Length
		for i := sort.Search(len(files), func(i int) bool { return files[i].to > one.Offset }); i < len(files) && files[i].from < end; i++ {
			f := files[i]
			from, to := max(f.from, one.Offset), min(f.to, end)
			chunks, err := chunksOf(extents, from, to)
			if err != nil {
				return Recording{}, err
			}
			r.Entries = append(r.Entries, Entry{At: one.At, Path: f.path, Offset: from - f.from, Length: to - from, Chunks: chunks})
		}
	}
	return r, nil
}

// span is a part of the device, file one that belongs to a file.
type span struct{ from, to int64 }

type file struct {
	span
	path string
}

// ranges returns what the reads cover, in the order of the device.
func ranges(reads []Read) (all []span) {
	for _, r := range reads {
		all = append(all, span{r.Offset, r.Offset + r.Length})
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	joined := all[:0]
	for _, s := range all {
		if n := len(joined); n > 0 && s.from <= joined[n-1].to {
			joined[n-1].to = max(joined[n-1].to, s.to)
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// chunksOf returns the chunks in a part of the device.
func chunksOf(extents *index.Map, from, to int64) (ids []chunk.ID, err error) {
	i, err := extents.Find(from)
	for ; err == nil && i < extents.Extents; i++ {
		var e index.Extent
		if e, err = extents.Extent(i); err != nil || e.Offset >= to {
			break
		}
		ids = append(ids, e.ID)
	}
	return ids, err
}
