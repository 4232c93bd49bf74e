package tree

import "io"

// Entries are the entries of a layer in memory.
type Entries []*Entry

// Source returns a reader of the entries. They are shared with other sources.
func (e Entries) Source() LayerSource { return &entrySource{e} }

type entrySource struct{ rest Entries }

// Next implements LayerSource.
func (s *entrySource) Next() (*Entry, error) {
	if len(s.rest) == 0 {
		return nil, io.EOF
	}
	e := s.rest[0]
	s.rest = s.rest[1:]
	return e, nil
}
