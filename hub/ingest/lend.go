package ingest

import (
	"context"
	"time"

	"lighter/format/pack"
)

// Scratch is the directory for what is being made. It is on the file system of
// the objects, and emptied at each start.
func (s *Service) Scratch() string { return s.config.Scratch }

// Encode compresses a unit as those of images are, but after them: while one is
// being taken in, it rests for as long as it has worked.
func (s *Service) Encode(ctx context.Context, b *pack.UnitBuilder, dst []byte) ([]byte, error) {
	begin := time.Now()
	select {
	case enc := <-s.encoders:
		dst = b.Encode(dst, enc)
		s.encoders <- enc
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	busy := s.taken != nil
	s.mu.Unlock()
	if !busy {
		return dst, nil
	}
	select {
	case <-time.After(time.Since(begin)):
		return dst, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
