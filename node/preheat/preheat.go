// Package preheat fetches chunks of an image into the cache before a container needs them: those of
// its startup packs, or all of them. The image need not have been pulled.
//
// The chunks are verified as those of a container's reads are, and fetched at lower priority. The
// cache may evict them like any others: pin an image that has to stay. The image's tree is held
// only while its chunks are fetched, so the next pull fetches the index again.
package preheat

import (
	"context"
	"fmt"

	"lighter/format/chunk"
	"lighter/node/binds"
	"lighter/node/completion"
)

// Chains mounts the trees of chains, and counts the users of chains (resolver.Chains).
type Chains interface {
	Hold(chain string)
	Drop(chain string)
	Mount(ctx context.Context, chain string) (dir string, err error)
	Tree(chain string) chunk.ID
}

// Trees lists the chunks of a tree on this machine.
type Trees interface {
	Chunks(ctx context.Context, tree chunk.ID, fn func(chunk.Ref)) error
	StartupChunks(ctx context.Context, tree chunk.ID, fn func(chunk.Ref)) error
}

// Fetcher fetches the listed chunks of a tree into the cache, and reports its progress.
type Fetcher interface {
	FetchListed(ctx context.Context, tree chunk.ID, list completion.Lister, report func(completion.Progress)) error
}

// Progress is what a preheat has done so far.
type Progress struct {
	Image    string `json:"image"` // the image's name on the hub
	Platform string `json:"platform"`
	// The wanted chunks. If the hub has no startup pack of the image, none is wanted.
	completion.Progress
}

// Preheater preheats images. It is safe for concurrent use.
type Preheater struct {
	Hub     binds.Hub
	Chains  Chains
	Trees   Trees
	Fetcher Fetcher
}

// Preheat fetches the chunks of the named image's startup packs, or all of its chunks, and reports
// its progress, at least once. It looks the image up as binds.Find does.
func (p *Preheater) Preheat(ctx context.Context, name, platform string, all bool, report func(Progress)) error {
	image, err := binds.Find(ctx, p.Hub, name, platform)
	if err != nil {
		return err
	}
	p.Chains.Hold(image.Chain)
	defer p.Chains.Drop(image.Chain)
	// A tree that can be mounted is on the disk and verified.
	if _, err := p.Chains.Mount(ctx, image.Chain); err != nil {
		return fmt.Errorf("preheat %s: %w", image.Name, err)
	}
	list := p.Trees.StartupChunks
	if all {
		list = p.Trees.Chunks
	}
	err = p.Fetcher.FetchListed(ctx, p.Chains.Tree(image.Chain), list, func(at completion.Progress) {
		report(Progress{Image: image.Name, Platform: image.Platform, Progress: at})
	})
	if err != nil {
		return fmt.Errorf("preheat %s: %w", image.Name, err)
	}
	return nil
}
