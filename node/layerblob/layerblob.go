// Package layerblob reads layers of images, compressed as in their registries, from the registry of
// a hub. It goes on after failures.
package layerblob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/sleep"
	"lighter/wire"
)

// maxFailures is how many attempts to read a layer fail in a row, without a byte more than before,
// until Read fails. With pauses, and a hub that does not answer, this takes up to two minutes.
const maxFailures = 5

// pauses are the pauses between failed attempts.
var pauses = sleep.Backoff{First: 250 * time.Millisecond, Most: 8 * time.Second, Jitter: 0.5}

// Statements gets verified statements about images (resolver.Resolver).
type Statements interface {
	Image(ctx context.Context, manifest string) (*index.ImageStatement, error)
}

// Hub reads the registry of a hub (origin.Failover).
type Hub interface {
	RegistryBlob(ctx context.Context, repository, digest string, from func() int64,
		take func(at int64, body io.Reader) error) error
}

// Reader reads layers. It is safe for concurrent use. All fields are required.
type Reader struct {
	Statements Statements
	Hub        Hub
	Log        *slog.Logger
}

// Sink takes the bytes of a layer.
type Sink interface {
	// At returns the offset of the first byte that the sink needs next.
	At() int64
	// Take takes the bytes from an offset, which is At or 0, up to io.EOF, which is the layer's
	// end. If they are wrong, its error wraps a *chunk.InvalidError. If it cannot take them, its
	// error wraps ErrSink.
	Take(at int64, body io.Reader) error
}

// ErrSink marks errors of a Sink that cannot take a layer.
var ErrSink = errors.New("this machine cannot store the layer")

// Read passes a layer to a sink, from the repositories that the hub has it in. manifest is the
// digest of an image's manifest that has the layer, and that a hub knows. Read tries again as long
// as more bytes arrive. Its error wraps chunk.ErrNotFound only if the layer is in no repository.
func (r *Reader) Read(ctx context.Context, manifest, layer string, to Sink) error {
	for failures, most := 0, int64(0); ; {
		err := r.attempt(ctx, manifest, layer, to)
		switch {
		case err == nil, errors.Is(err, ErrSink), ctx.Err() != nil, errors.Is(err, chunk.ErrNotFound):
			return err
		}
		if failures++; to.At() > most {
			most, failures = to.At(), 1
		}
		if failures >= maxFailures || !sleep.For(ctx, pauses.After(failures)) {
			return err
		}
		r.Log.Info("a layer is fetched further after a failure", "layer", layer, "have", to.At(), "err", err)
	}
}

// attempt asks for a layer in each repository of its image.
func (r *Reader) attempt(ctx context.Context, manifest, layer string, to Sink) error {
	image, err := r.Statements.Image(ctx, manifest)
	if err != nil {
		return err
	}
	missing := fmt.Errorf("the hub names no repository of manifest %s: %w", manifest, chunk.ErrNotFound)
	var failed error
	for _, repository := range image.Repositories {
		ref, err := wire.ParseName(repository)
		if err == nil {
			err = r.Hub.RegistryBlob(ctx, ref.Repository, layer, to.At, to.Take)
		}
		switch {
		case err == nil, errors.Is(err, ErrSink), ctx.Err() != nil:
			return err
		case errors.Is(err, chunk.ErrNotFound):
			missing = fmt.Errorf("get it from repository %s: %w", repository, err)
		default:
			failed = fmt.Errorf("get it from repository %s: %w", repository, err)
		}
	}
	if failed != nil {
		return failed
	}
	return missing
}
