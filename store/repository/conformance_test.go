package repository

import (
	"bytes"
	"context"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/store"
	"lighter/test/testkit/sourcetest"
)

// plainBlob is a source of chunks that lie one after the other in a blob.
type plainBlob struct {
	from    *Repository
	blob    v1.Descriptor
	offsets map[chunk.ID]int64
}

// Fetch implements store.Source.
func (p plainBlob) Fetch(ctx context.Context, ref chunk.Ref, take func(store.Answer) error) error {
	offset, ok := p.offsets[ref.ID]
	if !ok {
		return chunk.ErrNotFound
	}
	return p.from.Range(ctx, p.blob, offset, int64(ref.Length), take)
}

// A source that is made of ranges is as package store wants it.
func TestConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T, chunks [][]byte) (store.Source, []chunk.Ref) {
		f := startFake(t)
		f.blob = bytes.Join(chunks, nil)
		f.d = v1.Descriptor{Digest: digest.FromBytes(f.blob), Size: int64(len(f.blob))}
		p := plainBlob{f.open(t), f.d, map[chunk.ID]int64{}}
		var refs []chunk.Ref
		var offset int64
		for _, one := range chunks {
			ref := chunk.Ref{ID: chunk.Sum(one), Length: uint32(len(one))}
			refs, p.offsets[ref.ID] = append(refs, ref), offset
			offset += int64(ref.Length)
		}
		return p, refs
	})
}
