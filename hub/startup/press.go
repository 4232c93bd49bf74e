package startup

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/pack"
	"lighter/hub/catalog"
	"lighter/hub/startup/plan"
)

// Startup packs are made as fast as other units, since somebody may wait for them. Those
// of which starts have told, and which stay as they are for a moment, are pressed:
// compressed once more, as well as it goes, as every node that starts the image fetches
// them. docs/decisions/bytes.md has what it costs and gives.
const (
	// pressAfter is for how long a layout has to stay before it is pressed.
	pressAfter = 20 * time.Second
	// pressTimeout bounds the pressing of one tree's packs: 2 GiB, at 4 MB/s, while the
	// processors have other work. Nobody waits for it.
	pressTimeout = 2 * time.Hour
	// pressRest is for how long pressing rests while images are taken in, in units of
	// what it has worked.
	pressRest = 9
	// maxLoose bounds the layouts that are remembered until they are pressed, 40 bytes a
	// chunk. Of more, and when the hub ends meanwhile, packs stay as they are until the
	// next trace.
	maxLoose = 64
)

// errStale says that a tree was laid out anew while its packs were pressed.
var errStale = errors.New("there is a newer layout")

// looseLayout is one whose packs are to be pressed.
type looseLayout struct {
	at     time.Time
	packs  []plan.Pack
	digest []byte
}

// loosen notes that a tree's startup packs are worth pressing, or that none are.
func (s *Service) loosen(tree chunk.ID, packs []plan.Pack, digest []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.loose, tree)
	if len(packs) > 0 && len(s.loose) < maxLoose {
		s.loose[tree] = &looseLayout{time.Now().Add(s.PressAfter), packs, digest}
	}
}

// isLoose tells whether a tree's startup packs are still to be pressed.
func (s *Service) isLoose(tree chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, loose := s.loose[tree]
	return loose
}

// pressNext presses the startup packs of the tree whose turn it is, if there is one,
// and returns for how long there is none.
func (s *Service) pressNext(ctx context.Context) time.Duration {
	var next chunk.ID
	var l *looseLayout
	wait := sweepEvery
	s.mu.Lock()
	for tree, other := range s.loose {
		if until := time.Until(other.at); until < wait {
			next, l, wait = tree, other, until
		}
	}
	s.mu.Unlock()
	if wait > 0 {
		return wait
	}
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, pressTimeout)
	defer cancel()
	switch err := s.press(limited, next, l); {
	case err == nil:
		s.log.Info("startup packs were pressed", "tree", next.Short(), "seconds", time.Since(begin).Seconds())
	case errors.Is(err, errStale): // what is newer has its own turn
	case ctx.Err() == nil:
		s.log.Warn("startup packs could not be pressed", "tree", next.Short(), "cause", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loose[next] == l {
		delete(s.loose, next)
	}
	return 0
}

// press makes a tree's startup packs anew.
func (s *Service) press(ctx context.Context, tree chunk.ID, l *looseLayout) (err error) {
	before, err := s.unchanged(ctx, tree, l)
	if err != nil {
		return err
	}
	t, err := s.open(ctx, tree)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	p := newPresser(s.log)
	defer p.close()
	return s.publish(ctx, t, before, l.packs, append(slices.Clone(l.digest), pressedMark), func(ctx context.Context, b *pack.UnitBuilder, dst []byte) ([]byte, error) {
		if err := s.giveWay(ctx, tree, l); err != nil {
			return nil, err
		}
		var failed error
		inTheWay, err := s.encoders.Background(ctx, func(*zstd.Encoder) {
			dst, failed = b.EncodeWith(dst, func(dst, content []byte) ([]byte, error) { return p.press(ctx, dst, content) })
		})
		if err := errors.Join(err, failed); err != nil {
			return nil, err
		}
		return dst, s.rest(ctx, pressRest*inTheWay, tree, l)
	})
}

// giveWay lays out what is due: who waits for a layout does not wait for pressing.
func (s *Service) giveWay(ctx context.Context, tree chunk.ID, l *looseLayout) error {
	for s.next(ctx) <= 0 {
		if _, err := s.unchanged(ctx, tree, l); err != nil {
			return err
		}
	}
	return nil
}

// rest waits, and gives way meanwhile.
func (s *Service) rest(ctx context.Context, pause time.Duration, tree chunk.ID, l *looseLayout) error {
	over := time.After(pause)
	for {
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wake:
			if err := s.giveWay(ctx, tree, l); err != nil {
				return err
			}
		}
	}
}

// unchanged returns how a tree is laid out. errStale: not as it was to be pressed.
func (s *Service) unchanged(ctx context.Context, tree chunk.ID, l *looseLayout) (catalog.Layout, error) {
	now, err := s.catalog.Layout(ctx, tree)
	if err == nil && !bytes.Equal(now.Startup, l.digest) {
		err = errStale
	}
	return now, err
}
