package erofs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"sort"

	"lighter/format/tree"
)

// kinds has the type of a directory entry for each file type in a mode (the mode's bits from bit 12
// on). 0 means that there is no such file type.
var kinds = [16]uint8{
	tree.ModeRegular >> 12: 1, tree.ModeDir >> 12: 2, tree.ModeChar >> 12: 3, tree.ModeBlock >> 12: 4,
	tree.ModeFIFO >> 12: 5, tree.ModeSocket >> 12: 6, tree.ModeSymlink >> 12: 7,
}

const kindDir = 2

func kindOf(mode uint32) uint8 { return kinds[mode&tree.ModeType>>12] }

// names returns the names of a directory in the image's order. The nodes of "." and ".." are nil.
func names(n *tree.Node) iter.Seq2[string, *tree.Node] {
	children := n.Children()
	before := func(name string) int {
		return sort.Search(len(children), func(i int) bool { return children[i].Name > name })
	}
	dot, dotdot := before("."), before("..")
	return func(yield func(string, *tree.Node) bool) {
		for i := 0; i <= len(children); i++ {
			if i == dot && !yield(".", nil) || i == dotdot && !yield("..", nil) {
				return
			}
			if i < len(children) && !yield(children[i].Name, children[i].Node) {
				return
			}
		}
	}
}

// dirSize returns the number of full blocks of a directory, and the number of bytes used in the
// last block, which follows them. A block is full if the next name does not fit.
func dirSize(n *tree.Node) (closed, last int64) {
	for name := range names(n) {
		need := int64(direntSize + len(name))
		if last+need > BlockSize {
			closed++
			last = 0
		}
		last += need
	}
	return closed, last
}

// dirent is one entry of a directory block.
type dirent struct {
	name string
	nid  uint64
	kind uint8
}

// dirPacker packs the entries of a directory into blocks. It can be reused after finish.
type dirPacker struct {
	entries []dirent
	used    int
	buf     []byte
}

// add appends an entry. If it does not fit, add first calls flush with the full block, padded to
// BlockSize. flush must not keep the slice.
func (p *dirPacker) add(d dirent, flush func([]byte) error) error {
	need := direntSize + len(d.name)
	if p.used+need > BlockSize {
		pad := BlockSize - p.used
		p.buf = append(p.finish(), zeros[:pad]...)
		if err := flush(p.buf); err != nil {
			return err
		}
	}
	p.entries = append(p.entries, d)
	p.used += need
	return nil
}

// finish returns the current block, not padded, and starts the next. The slice is valid until the
// next call of add or finish.
func (p *dirPacker) finish() []byte {
	p.buf = p.buf[:0]
	at := direntSize * len(p.entries)
	for _, d := range p.entries {
		p.buf = binary.LittleEndian.AppendUint64(p.buf, d.nid)
		p.buf = binary.LittleEndian.AppendUint16(p.buf, uint16(at))
		p.buf = append(p.buf, d.kind, 0)
		at += len(d.name)
	}
	for _, d := range p.entries {
		p.buf = append(p.buf, d.name...)
	}
	p.entries, p.used = p.entries[:0], 0
	return p.buf
}

// dirEntry is an entry of a directory's block as it was read. name is a slice of the block.
type dirEntry struct {
	name []byte
	nid  uint64
	kind uint8
}

// dirEntries returns the entries of a directory's block, and ends with an error if the block is
// invalid. b is the part of the block that is within the directory's size. The caller checks the
// order of the names.
func dirEntries(b []byte) iter.Seq2[dirEntry, error] {
	le := binary.LittleEndian
	return func(yield func(dirEntry, error) bool) {
		if len(b) < direntSize {
			yield(dirEntry{}, bad("block of %d bytes has no entry", len(b)))
			return
		}
		first := int(le.Uint16(b[8:]))
		if first < direntSize || first%direntSize != 0 || first >= len(b) {
			yield(dirEntry{}, bad("names of a block of %d bytes start at %d", len(b), first))
			return
		}
		at := first
		for i := 0; i < first; i += direntSize {
			end := len(b)
			if i+direntSize < first {
				end = int(le.Uint16(b[i+direntSize+8:]))
			} else if n := bytes.IndexByte(b[at:], 0); n >= 0 {
				end = at + n // a block that is not the last is padded
			}
			if end <= at || end > len(b) || end-at > maxName {
				yield(dirEntry{}, bad("entry %d has a name from byte %d to %d", i/direntSize, at, end))
				return
			}
			if b[i+11] != 0 {
				yield(dirEntry{}, bad("reserved byte of a directory entry is not zero"))
				return
			}
			if !yield(dirEntry{b[at:end], le.Uint64(b[i:]), b[i+10]}, nil) {
				return
			}
			at = end
		}
	}
}

// checkName returns an error unless name is valid for a child of a directory.
func checkName(name []byte) error {
	switch {
	case len(name) == 0 || len(name) > maxName:
		return fmt.Errorf("name of %d bytes: %w", len(name), ErrTooLarge)
	case bytes.IndexByte(name, '/') >= 0 || bytes.IndexByte(name, 0) >= 0:
		return fmt.Errorf("name %q has a slash or a NUL in it", name)
	case string(name) == "." || string(name) == "..":
		return fmt.Errorf("a child is named %q", name)
	}
	return nil
}
