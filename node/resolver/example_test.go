package resolver_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"os"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/resolver"
	"lighter/wire"
)

// A front holds each chain, claims it, and mounts the top of the image.
func Example() {
	root, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	keys, err := resolver.NewKeys(root, []string{index.FormatKey(key.Public().(ed25519.PublicKey))}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := resolver.New(resolver.Config{
		Root:         root,
		Trust:        resolver.TrustChain,
		Answerers:    []resolver.Answerer{oneImage{key}},
		LastReceived: time.Now,
		Trees:        cached{},
		Keys:         keys,
		Log:          slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, layer := range []resolver.Request{
		{Chain: base, MoreAbove: true},
		{Chain: top, Parent: base},
		{Chain: other},
	} {
		r.Hold(layer.Chain)
		defer r.Drop(layer.Chain)
		why, err := r.Claim(context.Background(), layer)
		if err != nil {
			fmt.Println("unpack:", err)
			continue
		}
		fmt.Println("lazy:", why)
	}
	dir, err := r.Mount(context.Background(), top)
	fmt.Println(dir, err)
	// Output:
	// lazy: it is part of an image that comes from the example
	// lazy: its tree comes from the example
	// unpack: the example does not know this chain
	// /mounted/tree <nil>
}

var (
	base  = "sha256:" + chunk.Sum([]byte("base")).String()
	top   = "sha256:" + chunk.Sum([]byte("top")).String()
	other = "sha256:" + chunk.Sum([]byte("other")).String()
)

// oneImage is an Answerer that knows one image: a layer on a base.
type oneImage struct{ key ed25519.PrivateKey }

func (o oneImage) Answer(_ context.Context, layer resolver.Request) (*resolver.Answer, error) {
	if layer.Chain != base {
		return nil, unknown{}
	}
	s := index.Sign(o.key, top, chunk.Sum([]byte("tree")))
	return &resolver.Answer{Source: "the example", Chain: &wire.Chain{
		Link:     wire.Link{Chain: base},
		Above:    []wire.Link{{Chain: top, Parent: base, Statement: &s}},
		Complete: true,
	}}, nil
}

// unknown is an error whose text names the source.
type unknown struct{}

func (unknown) Error() string        { return "the example does not know this chain" }
func (unknown) Is(target error) bool { return target == chunk.ErrNotFound }

func (o oneImage) Tree(context.Context, string) (*index.Statement, error) {
	return nil, chunk.ErrNotFound
}

func (o oneImage) Soon(context.Context, string) (*wire.Soon, error) {
	return nil, chunk.ErrNotFound
}

// cached is a resolver.Trees that has all trees.
type cached struct{}

func (cached) CheckMountable() error                           { return nil }
func (cached) Has(chunk.ID) bool                               { return true }
func (cached) List() ([]chunk.ID, error)                       { return nil, nil }
func (cached) Ensure(context.Context, chunk.ID, func()) error  { return nil }
func (cached) Mount(context.Context, chunk.ID) (string, error) { return "/mounted/tree", nil }
func (cached) NoteStart(chunk.ID)                              {}
func (cached) Remove(chunk.ID) error                           { return nil }
func (cached) Size(chunk.ID) (bytes, inodes int64)             { return 0, 0 }
