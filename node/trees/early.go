package trees

import "lighter/format/chunk"

// prefetchStart opens a tree that is not mounted yet and prefetches the chunks of its start.
func (s *Store) prefetchStart(tree chunk.ID) {
	if _, local := s.HasLocal(tree); local || len(s.opened(tree)) > 0 {
		// A local device needs no prefetched chunks. An open tree prefetches at its next mount at
		// the latest.
		return
	}
	o, err := s.open(tree)
	if err != nil {
		return // Serve reports it
	}
	if closing := s.addEarly(o); closing != nil {
		closing.close()
	}
	if !s.Has(tree) { // removed meanwhile
		s.closeEarly(tree)
	}
}

// closeEarly closes the device that prefetchStart opened for a tree, if Serve has not taken it
// over.
func (s *Store) closeEarly(tree chunk.ID) {
	if o := s.takeEarly(tree); o != nil {
		o.close()
	}
}

// EndStreams ends the fetches of startup packs for all open trees. From then on, prefetchStart
// keeps no tree open. EndStreams is called when the node ends: a tree that is mounted later would
// fetch its packs.
func (s *Store) EndStreams() {
	for _, o := range s.endEarly() {
		o.close()
	}
	for _, o := range s.allServed() {
		o.Device.EndStartup()
	}
}
