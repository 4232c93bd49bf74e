package direct

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"lighter/format/chunk"
	"lighter/store"
)

// Hubs are the node's hubs.
type Hubs interface {
	store.UnitSource
	store.Connector
	store.Estimator
	Index(ctx context.Context, tree chunk.ID, take func(plain io.Reader) error) error
	Locations(ctx context.Context, tree, have chunk.ID, take func(plain io.Reader) error) error
}

// Source is the source of a node's chunks, indexes and locations: those of the images that were
// answered here come from their registry and from the disk, all others from the hubs. It is safe
// for concurrent use.
type Source struct {
	Hubs
	images *Images
}

var (
	_ store.UnitSource = (*Source)(nil)
	_ store.Router     = (*Source)(nil)
	_ store.Estimator  = (*Source)(nil)
)

// Estimate implements store.Estimator: a registry's RTT is known from the pull.
func (s *Source) Estimate(server string) (roundTrip time.Duration, bandwidth float64) {
	if server == "" {
		return s.Hubs.Estimate(server)
	}
	for _, name := range s.images.repositories.Keys() {
		host, _, _ := strings.Cut(name, "/")
		r, ok := s.images.repositories.Peek(name)
		if !ok || host != server || r.RoundTrip() == 0 {
			continue
		}
		if roundTrip == 0 || r.RoundTrip() < roundTrip {
			roundTrip = r.RoundTrip()
		}
	}
	return roundTrip, 0
}

// Route names the registry that a unit is requested from, HOST[:PORT]. It is empty for units of the
// hubs.
func (s *Source) Route(u chunk.Unit) string {
	layers := s.images.kept.layersOf(u.Pack)
	if len(layers) == 0 {
		return ""
	}
	host, _, _ := strings.Cut(s.images.kept.repositories(layers[0])[0], "/")
	return host
}

// Source returns the source.
func (m *Images) Source(hubs Hubs) *Source { return &Source{hubs, m} }

// FetchUnit passes a unit to take: the bytes of a layer's blob, if a tree that was made here has
// this layer. If trees in several formats have it, or their registries differ, the one that has
// answered last is tried first.
func (s *Source) FetchUnit(ctx context.Context, u chunk.Unit, take func(store.Answer) error) error {
	layers := s.images.kept.layersOf(u.Pack)
	if len(layers) == 0 {
		return s.Hubs.FetchUnit(ctx, u, take)
	}
	var failed error
	for i, l := range layers {
		for _, in := range s.images.kept.repositories(l) {
			err := s.fetch(ctx, l, in, u.N, take)
			if err == nil && i > 0 {
				s.images.kept.prefer(l)
			}
			if err == nil || ctx.Err() != nil {
				return err
			}
			if l.startup != nil && !errors.As(err, new(*chunk.InvalidError)) {
				err = missed{err}
			}
			failed = preferred(failed, err)
		}
	}
	return failed
}

// missed says that a startup pack cannot be read. Its chunks are in the layers, too (Fetch).
type missed struct{ error }

var _ store.Unavailable = missed{}

func (m missed) Unwrap() error { return m.error }

// RetryAfter implements store.Unavailable.
func (missed) RetryAfter() time.Duration { return 0 }

// Missed implements store.Unavailable.
func (missed) Missed() bool { return true }

// preferred returns the error that says more: whatever keeps a registry that may have a blob from
// sending it, rather than that another one does not have it.
func preferred(a, b error) error {
	if a == nil || errors.Is(a, chunk.ErrNotFound) {
		return b
	}
	return a
}

func (s *Source) fetch(
	ctx context.Context, l *keptLayer, repository string, n uint32, take func(store.Answer) error,
) error {
	offset, length, set, err := l.unit(n)
	if err != nil {
		return err
	}
	from, err := s.images.open(repository)
	if err != nil {
		return err
	}
	return from.Range(ctx, l.descriptor, offset, length, func(a store.Answer) error {
		set(&a)
		return take(a)
	})
}

// Fetch passes a chunk to take. Only hubs find a chunk by its ID alone. A chunk of a startup pack
// that the registry has lost is in a layer, too. If images in several formats have a layer, its
// units have other chunks in each: a reader may have got another format's unit of the same number.
func (s *Source) Fetch(ctx context.Context, ref chunk.Ref, take func(store.Answer) error) error {
	if ref.Unit.IsZero() {
		return s.Hubs.Fetch(ctx, ref, take)
	}
	layers := s.images.kept.layersOf(ref.Unit.Pack)
	if len(layers) == 0 {
		return s.Hubs.Fetch(ctx, ref, take)
	}
	for _, l := range layers {
		if l.startup == nil {
			continue
		}
		u, err := l.of.inLayers(ref.ID)
		if err != nil {
			return err
		}
		return s.FetchUnit(ctx, u, take)
	}
	if len(layers) > 1 {
		return s.FetchUnit(ctx, ref.Unit, take)
	}
	return fmt.Errorf("chunk %s: its layer has it in one unit only: %w", ref.ID.Short(), chunk.ErrNotFound)
}

// Index passes the bytes of a tree's index to take.
func (s *Source) Index(ctx context.Context, tree chunk.ID, take func(plain io.Reader) error) error {
	if !s.images.kept.has(tree) {
		return s.Hubs.Index(ctx, tree, take)
	}
	return s.file(tree, "index", take)
}

// Locations passes the bytes of a tree's locations to take, unless the caller has them.
func (s *Source) Locations(ctx context.Context, tree, have chunk.ID, take func(plain io.Reader) error) error {
	if !s.images.kept.has(tree) {
		return s.Hubs.Locations(ctx, tree, have, take)
	}
	isCurrent := false
	err := s.file(tree, "locations", func(plain io.Reader) error {
		sum := sha256.New()
		_, err := io.Copy(sum, plain)
		isCurrent = chunk.ID(sum.Sum(nil)) == have
		return err
	})
	if err != nil || isCurrent {
		return err
	}
	return s.file(tree, "locations", take)
}

func (s *Source) file(tree chunk.ID, name string, take func(plain io.Reader) error) error {
	file, err := os.Open(s.images.kept.path(tree, name))
	if err != nil {
		return fmt.Errorf("read the %s of tree %s, which was made here: %w", name, tree.Short(), err)
	}
	defer file.Close()
	return take(file)
}
