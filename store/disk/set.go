package disk

import (
	"bytes"
	"cmp"
	"slices"

	"lighter/format/chunk"
)

// Set is a set of chunks. It takes 20 bytes for each. Add must not be called after any other
// method.
type Set struct {
	chunks []member
	sorted bool
}

type member struct {
	key    key
	length uint32 // of the chunk; 0: it was removed
}

func (m member) compare(other member) int {
	return cmp.Or(bytes.Compare(m.key[:], other.key[:]), cmp.Compare(m.length, other.length))
}

// Add adds a chunk. It may be in the set already.
func (s *Set) Add(ref chunk.Ref) { s.chunks = append(s.chunks, member{keyOf(ref.ID), ref.Length}) }

// Remove removes a chunk.
func (s *Set) Remove(id chunk.ID) {
	if i, ok := s.find(keyOf(id)); ok {
		s.chunks[i].length = 0
	}
}

func (s *Set) find(k key) (int, bool) {
	s.sort()
	return slices.BinarySearchFunc(s.chunks, k, func(m member, k key) int { return bytes.Compare(m.key[:], k[:]) })
}

func (s *Set) has(k key) bool {
	i, ok := s.find(k)
	return ok && s.chunks[i].length > 0
}

func (s *Set) sort() {
	if s.sorted {
		return
	}
	slices.SortFunc(s.chunks, member.compare)
	s.chunks = slices.Clip(slices.CompactFunc(s.chunks, func(a, b member) bool { return a.key == b.key }))
	s.sorted = true
}
