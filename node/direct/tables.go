package direct

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/stargz"
	"lighter/store"
	"lighter/store/repository"
)

// readTables reads the tables of contents of an image: eStargz, zstd:chunked.
func readTables(ctx context.Context, m *Images, from *repository.Repository, im *read) ([]*mapped, error) {
	return eachLayer(ctx, im.layers, func(ctx context.Context, _ int, d v1.Descriptor) (*mapped, error) {
		return m.mapLayer(ctx, from, d)
	})
}

// mapLayer reads a layer's table.
func (m *Images) mapLayer(ctx context.Context, from *repository.Repository, d v1.Descriptor) (*mapped, error) {
	pack, err := packOf(d)
	if err != nil {
		return nil, notDirect{err}
	}
	t, end, err := locate(ctx, from, d)
	if err != nil {
		return nil, err
	}
	if why, known := m.damaged.Get(namedTable{d.Digest, t}); known {
		return nil, why
	}
	l, err := readTable(ctx, from, d, t, end)
	if errors.As(err, new(*chunk.InvalidError)) {
		err = m.judge(ctx, from, d, t, err)
	}
	if err != nil {
		return nil, fmt.Errorf("the table of layer %s: %w", d.Digest, err)
	}
	to, err := l.Map(pack, d.Size)
	if err != nil {
		return nil, notDirect{fmt.Errorf("layer %s: %w", d.Digest, err)}
	}
	return &mapped{Layer: to, hides: t.Format.Hides}, nil
}

// readTable reads a layer's table. end has the last bytes of the blob, of which the table may be a
// part.
func readTable(ctx context.Context, from *repository.Repository, d v1.Descriptor, t stargz.Table, end []byte) (
	l *stargz.Layer, err error,
) {
	decode := func(r io.Reader) (err error) {
		if l, err = stargz.Decode(ctx, t, r); err != nil && !errors.As(err, new(*chunk.InvalidError)) {
			err = notDirect{err}
		}
		return err
	}
	begin := d.Size - int64(len(end)) // of end
	known := end[max(t.Offset-begin, 0):max(t.Offset+t.Length-begin, 0)]
	rest := t.Length - int64(len(known))
	if rest == 0 {
		err = decode(bytes.NewReader(known))
	} else {
		err = from.Range(ctx, d, t.Offset, rest, func(a store.Answer) error {
			return decode(io.MultiReader(a.Body, bytes.NewReader(known)))
		})
	}
	return l, err
}

// namedTable is a layer's table, as the layer's descriptor names it.
type namedTable struct {
	layer digest.Digest
	stargz.Table
}

// judge returns the error of a table that has arrived with wrong bytes. The registry may have sent
// other bytes than the layer's. So a layer that is not too large is read as a whole: if it has its
// digest and the table is wrong, the error is notDirect, and is remembered.
func (m *Images) judge(
	ctx context.Context, from *repository.Repository, d v1.Descriptor, t stargz.Table, found error,
) error {
	if d.Size > maxWhole {
		return found
	}
	err := from.Whole(ctx, d, func(a store.Answer) error {
		if _, err := io.CopyN(io.Discard, a.Body, t.Offset); err != nil {
			return err
		}
		_, err := stargz.Decode(ctx, t, io.LimitReader(a.Body, t.Length))
		if err != nil {
			err = repository.Judge(a.Body, notDirect{err})
		}
		return err
	})
	switch {
	case err == nil:
		return found
	case errors.As(err, new(notDirect)) && ctx.Err() == nil:
		m.damaged.Add(namedTable{d.Digest, t}, err)
	}
	return err
}

const (
	// tablePart is the part of a layer that its table is assumed to have: layers of the benchmark
	// have 0.6 to 0.8 %. That many of the layer's last bytes are read with its footer, in one
	// request: from minTail, which is longer than any footer, to maxTail.
	tablePart = 100
	minTail   = 16 << 10
	maxTail   = 1 << 20
)

// locate finds a layer's table: by its annotations, or by the end of its blob. It returns the end
// that it has read.
func locate(ctx context.Context, from *repository.Repository, d v1.Descriptor) (t stargz.Table, end []byte, err error) {
	t, found, err := stargz.Locate(d.Annotations, d.Size)
	if err == nil && !found && d.Annotations[stargz.TableDigest] == "" {
		err = stargz.ErrNoTable // or one that nothing binds to the image
	}
	if err == nil && !found {
		n := min(max(d.Size/tablePart, minTail), maxTail, d.Size)
		err = from.Range(ctx, d, d.Size-n, n, func(a store.Answer) (err error) {
			end, err = io.ReadAll(io.LimitReader(a.Body, n))
			return err
		})
		if err != nil {
			return t, nil, fmt.Errorf("the end of layer %s: %w", d.Digest, err)
		}
		t, err = stargz.LocateByFooter(d.Annotations, d.Size, end)
	}
	switch {
	case err != nil:
	case t.External:
		err = errors.New("its table is in another image")
	case !t.Verifiable():
		err = errors.New("nothing binds its table to the image")
	}
	if err != nil {
		return t, nil, notDirect{fmt.Errorf("layer %s: %w", d.Digest, err)}
	}
	return t, end, nil
}
