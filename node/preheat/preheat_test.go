package preheat

import (
	"context"
	"errors"
	"testing"

	"lighter/format/chunk"
	"lighter/node/binds"
	"lighter/node/completion"
	"lighter/wire"
)

// fake is a hub with one image, whose chain is "chain", and the parts of a node. broken is the
// error of Mount.
type fake struct {
	held   int
	broken error
	all    bool // Chunks was called, and not StartupChunks
}

func (f *fake) URL() string { return "hub" }
func (f *fake) Images(_ context.Context, name string) ([]wire.Image, error) {
	if name != "r/i:1" {
		return nil, nil
	}
	return []wire.Image{{Name: name, Platform: "linux/riscv64", State: wire.StateReady, Chain: "chain"}}, nil
}
func (f *fake) Hold(string)                                             { f.held++ }
func (f *fake) Drop(string)                                             { f.held-- }
func (f *fake) Mount(context.Context, string) (string, error)           { return "", f.broken }
func (f *fake) Tree(chain string) chunk.ID                              { return chunk.Sum([]byte(chain)) }
func (f *fake) Chunks(context.Context, chunk.ID, func(chunk.Ref)) error { f.all = true; return nil }
func (f *fake) StartupChunks(context.Context, chunk.ID, func(chunk.Ref)) error {
	f.all = false
	return nil
}

func (f *fake) FetchListed(
	ctx context.Context, tree chunk.ID, list completion.Lister, report func(completion.Progress),
) error {
	if tree != f.Tree("chain") || f.held != 1 {
		return errors.New("the chain is not held, or this is another tree")
	}
	report(completion.Progress{Cached: 1, All: 1})
	return list(ctx, tree, nil)
}

// The image's chain is held while its chunks are fetched, and dropped afterwards, also after a
// failure.
func TestPreheat(t *testing.T) {
	f := &fake{}
	p := Preheater{Hub: f, Chains: f, Trees: f, Fetcher: f}
	for _, all := range []bool{false, true} {
		var last Progress
		err := p.Preheat(t.Context(), "r/i:1", "linux/riscv64", all, func(at Progress) { last = at })
		if err != nil || f.all != all || f.held != 0 || last.Image != "r/i:1" || last.All != 1 {
			t.Errorf("all %t: got %v, all chunks %t, %d holders, %+v", all, err, f.all, f.held, last)
		}
	}
	f.broken = errors.New("no index")
	if err := p.Preheat(t.Context(), "r/i:1", "linux/riscv64", true, nil); !errors.Is(err, f.broken) || f.held != 0 {
		t.Errorf("a tree that cannot be mounted: got %v, %d holders; want %v, none", err, f.held, f.broken)
	}
	if err := p.Preheat(t.Context(), "r/other:1", "", false, nil); !errors.Is(err, binds.ErrNoImage) {
		t.Errorf("an unknown image: got %v, want %v", err, binds.ErrNoImage)
	}
}
