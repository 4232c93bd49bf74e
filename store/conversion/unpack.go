package conversion

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/opencontainers/go-digest"

	"lighter/format/compress"
	"lighter/store/registry"
)

// unpack returns a file without a name that has a layer's tar, whose digests were compared.
func (c *converter) unpack(ctx context.Context, from *registry.Original, n int) (archive *os.File, size int64,
	err error) {
	stored, err := from.Open(n)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, stored.Close()) }()
	f, err := unnamed(c.Dir)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	in, diff := c.digested(ctx, stored, from, n), sha256.New()
	if size, err = unpackTo(io.MultiWriter(f, diff), in); err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	if err == nil {
		err = in.check(from, n, diff)
	}
	return f, size, err
}

// unpackTo writes the tar of a layer, and returns its size.
func unpackTo(w io.Writer, layer io.Reader) (size int64, err error) {
	plain, err := compress.Layer(layer)
	if err != nil {
		return 0, err
	}
	size, err = io.Copy(w, plain)
	return size, errors.Join(err, plain.Close())
}

// digested hashes what is read, up to a limit, until its context is done.
type digested struct {
	ctx      context.Context
	r        io.Reader
	sum      hash.Hash
	n, limit int64 // limit 0: none
	report   func(n int64)
}

func (d *digested) Read(p []byte) (int, error) {
	if err := d.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := d.r.Read(p)
	d.sum.Write(p[:n])
	if d.n += int64(n); d.limit > 0 && d.n > d.limit {
		return 0, fmt.Errorf("it has more than %d bytes", d.limit)
	}
	d.report(int64(n))
	return n, err
}

// digested returns a reader of a layer as it is stored.
func (c *converter) digested(ctx context.Context, stored io.Reader, from *registry.Original, n int) *digested {
	d := &digested{ctx: ctx, r: stored, sum: sha256.New(), report: func(int64) {}}
	if from.Digest != "" {
		d.limit = from.Layers[n].Size
		d.report = c.reporter("read", nameOf(from, n), d.limit)
	}
	return d
}

// check compares what was read with the layer's descriptor, and the digest of its tar with the
// diffID.
func (d *digested) check(from *registry.Original, n int, tar hash.Hash) error {
	want := from.Layers[n]
	if got := digest.NewDigest(digest.SHA256, d.sum); from.Digest != "" && (got != want.Digest || d.n != want.Size) {
		return fmt.Errorf("its %d bytes have the digest %s, want %d bytes with that of its name", d.n, got, want.Size)
	}
	if got := digest.NewDigest(digest.SHA256, tar); got.String() != from.DiffIDs[n] {
		return fmt.Errorf("its tar has the digest %s, and the config names %s", got, from.DiffIDs[n])
	}
	return nil
}
