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
	old := from.Layers[n]
	in := &digested{ctx: ctx, r: stored, sum: sha256.New(), report: c.reporter("read", nameOf(from, n), old.Size)}
	if from.Digest != "" {
		in.limit = old.Size
	} else {
		in.report = func(int64) {}
	}
	plain, err := compress.Layer(in)
	if err != nil {
		return nil, 0, err
	}
	diff := sha256.New()
	size, err = io.Copy(io.MultiWriter(f, diff), plain)
	if err := errors.Join(err, plain.Close()); err != nil {
		return nil, 0, err
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return nil, 0, err
	}
	if got := digest.NewDigest(digest.SHA256, in.sum); from.Digest != "" && (got != old.Digest || in.n != old.Size) {
		return nil, 0, fmt.Errorf("its %d bytes have the digest %s, want %d bytes with that of its name", in.n, got,
			old.Size)
	}
	if got := digest.NewDigest(digest.SHA256, diff); got.String() != from.DiffIDs[n] {
		return nil, 0, fmt.Errorf("its tar has the digest %s, and the config names %s", got, from.DiffIDs[n])
	}
	return f, size, nil
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
