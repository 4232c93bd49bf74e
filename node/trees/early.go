package trees

import (
	"slices"

	"lighter/format/chunk"
)

// early is a tree that is open before it is mounted, so that the chunks of its start are
// prefetched.
type early struct {
	tree chunk.ID
	open *OpenTree
}

// prefetchStart opens a tree that is not mounted yet and prefetches the chunks of its start.
func (s *Store) prefetchStart(tree chunk.ID) {
	if s.UsesLocal(tree) || s.Served(tree) != nil || s.hasEarly(tree) {
		return // a local device needs no prefetched chunks
	}
	o, err := s.open(tree)
	if err != nil {
		return // Serve reports and repairs it
	}
	if closing := s.addEarly(tree, o); closing != nil {
		closing.close()
	}
	if !s.Has(tree) { // removed meanwhile
		s.closeEarly(tree)
	}
}

// addEarly keeps a tree open for Serve, and returns the one to close: this one, the oldest, or
// none.
func (s *Store) addEarly(tree chunk.ID, o *OpenTree) (closing *OpenTree) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.served[tree] != nil || s.findEarly(tree) >= 0 || !o.Device.Begin() {
		return o
	}
	s.early = append(s.early, early{tree, o})
	if len(s.early) > maxEarly {
		closing = s.early[0].open
		s.early = slices.Delete(s.early, 0, 1)
	}
	return closing
}

// findEarly returns the position of a tree in s.early, or -1; s.mu is held.
func (s *Store) findEarly(tree chunk.ID) int {
	return slices.IndexFunc(s.early, func(e early) bool { return e.tree == tree })
}

func (s *Store) hasEarly(tree chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.findEarly(tree) >= 0
}

// takeEarly returns a tree that is open before it is mounted, or nil. The caller owns it.
func (s *Store) takeEarly(tree chunk.ID) *OpenTree {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.findEarly(tree)
	if i < 0 {
		return nil
	}
	o := s.early[i].open
	s.early = slices.Delete(s.early, i, i+1)
	return o
}

// closeEarly closes what prefetchStart opened of a tree, if Serve has not taken it.
func (s *Store) closeEarly(tree chunk.ID) {
	if o := s.takeEarly(tree); o != nil {
		o.close()
	}
}

// EndStreams ends the prefetching of starts for good.
func (s *Store) EndStreams() {
	s.mu.Lock()
	before := s.early
	s.early, s.ended = nil, true
	s.mu.Unlock()
	for _, e := range before {
		e.open.close()
	}
	for _, o := range s.allServed() {
		o.Device.EndStartup()
	}
}
