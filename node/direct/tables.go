package direct

import (
	"context"
	"errors"
	"fmt"
	"io"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/stargz"
	"lighter/store"
	"lighter/store/repository"
)

// readTables reads the tables of contents of an image: eStargz, zstd:chunked.
func readTables(ctx context.Context, _ *Images, from *repository.Repository, im *read) ([]*mapped, error) {
	return eachLayer(ctx, im.layers, func(ctx context.Context, _ int, d v1.Descriptor) (*mapped, error) {
		return mapLayer(ctx, from, d)
	})
}

// mapLayer reads a layer's table.
func mapLayer(ctx context.Context, from *repository.Repository, d v1.Descriptor) (*mapped, error) {
	pack, err := packOf(d)
	if err != nil {
		return nil, notDirect{err}
	}
	t, err := locate(ctx, from, d)
	if err != nil {
		return nil, err
	}
	var l *stargz.Layer
	err = from.Range(ctx, d, t.Offset, t.Length, func(a store.Answer) (err error) {
		if l, err = stargz.Decode(ctx, t, a.Body); err != nil && !errors.As(err, new(*chunk.InvalidError)) {
			err = notDirect{err}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the table of layer %s: %w", d.Digest, err)
	}
	to, err := l.Map(pack, d.Size)
	if err != nil {
		return nil, notDirect{fmt.Errorf("layer %s: %w", d.Digest, err)}
	}
	return &mapped{Layer: to, hides: t.Format.Hides}, nil
}

// locate finds a layer's table: by its annotations, or by the end of its blob.
func locate(ctx context.Context, from *repository.Repository, d v1.Descriptor) (t stargz.Table, err error) {
	t, found, err := stargz.Locate(d.Annotations, d.Size)
	if err == nil && !found && d.Annotations[stargz.TableDigest] == "" {
		err = stargz.ErrNoTable // or one that nothing binds to the image
	}
	if err == nil && !found {
		n := stargz.TailLength(d.Size)
		var tail []byte
		err = from.Range(ctx, d, d.Size-n, n, func(a store.Answer) (err error) {
			tail, err = io.ReadAll(io.LimitReader(a.Body, n))
			return err
		})
		if err != nil {
			return t, fmt.Errorf("the end of layer %s: %w", d.Digest, err)
		}
		t, err = stargz.LocateByFooter(d.Annotations, d.Size, tail)
	}
	switch {
	case err != nil:
	case t.External:
		err = errors.New("its table is in another image")
	case !t.Verifiable():
		err = errors.New("nothing binds its table to the image")
	}
	if err != nil {
		return t, notDirect{fmt.Errorf("layer %s: %w", d.Digest, err)}
	}
	return t, nil
}
