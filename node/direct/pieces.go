package direct

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/sleep"
	"lighter/store"
	"lighter/store/repository"
)

const (
	// pieceSize is how many bytes of a layer are requested at a time, in the background. Between
	// two pieces the node waits for readers, and holds no connection.
	pieceSize = 4 << 20
	// pieceTries is how often a piece is requested.
	pieceTries = 3
)

// piecePauses are the pauses between the requests for a piece.
var piecePauses = sleep.Backoff{First: time.Second, Most: 10 * time.Second, Jitter: 0.5}

// pieces reads a whole blob in pieces, and checks its digest at the end.
type pieces struct {
	ctx  context.Context // of the caller, for the reader's life
	from *repository.Repository
	blob v1.Descriptor
	wait func(ctx context.Context, bytes int64) error

	sum    hash.Hash
	offset int64
	buffer []byte
	rest   []byte // of buffer
}

func newPieces(
	ctx context.Context, from *repository.Repository, blob v1.Descriptor,
	wait func(ctx context.Context, bytes int64) error,
) *pieces {
	return &pieces{ctx: ctx, from: from, blob: blob, wait: wait, sum: blob.Digest.Algorithm().Hash()}
}

// Read implements io.Reader.
func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		if p.offset == p.blob.Size {
			return 0, p.end()
		}
		if err := p.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// next fetches the next piece.
func (p *pieces) next() error {
	n := min(pieceSize, p.blob.Size-p.offset)
	if p.buffer == nil {
		p.buffer = make([]byte, n)
	}
	for try := 1; ; try++ {
		if err := p.wait(p.ctx, n); err != nil {
			return err
		}
		err := p.from.Range(p.ctx, p.blob, p.offset, n, func(a store.Answer) error {
			_, err := io.ReadFull(a.Body, p.buffer[:n])
			return err
		})
		if err == nil {
			break
		}
		if try == pieceTries || errors.Is(err, chunk.ErrNotFound) || !sleep.For(p.ctx, piecePauses.After(try)) {
			return err
		}
	}
	p.rest = p.buffer[:n]
	p.sum.Write(p.rest)
	p.offset += n
	return nil
}

// end returns io.EOF if the blob has its digest, and otherwise a *chunk.InvalidError.
func (p *pieces) end() error {
	if got := digest.NewDigest(p.blob.Digest.Algorithm(), p.sum); got != p.blob.Digest {
		return &chunk.InvalidError{What: fmt.Sprintf("blob %s of %s", p.blob.Digest, p.from),
			Err: fmt.Errorf("its digest is %s", got)}
	}
	return io.EOF
}
