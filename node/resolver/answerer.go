package resolver

import (
	"cmp"
	"context"
	"errors"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

// Answerer is a source of images: hubs, or tables of contents in layers of other registries. An
// answerer need not be trusted: the Resolver verifies the statements in its answers with the hubs'
// pinned keys. An answerer that makes indexes on this machine signs the statements about them with
// the node's own key (Keys.SetOwn).
//
// An error wraps chunk.ErrNotFound if the source does not know the image or chain. After any error
// the next Answerer is asked.
type Answerer interface {
	// Answer returns what the source knows of the request's manifest, or of the request's chain if
	// the request has no manifest.
	Answer(ctx context.Context, q Request) (*Answer, error)
	// Tree returns the statement of a chain's tree. If the chain has no tree yet, the source makes
	// one.
	Tree(ctx context.Context, chain string) (*index.Statement, error)
	// Soon returns when the source will have the image with a manifest, if it does not have it yet
	// and is about to have it.
	Soon(ctx context.Context, manifest string) (*wire.Soon, error)
}

// Answer is what an Answerer knows. Either Image or Chain is set.
type Answer struct {
	Image *wire.Manifest // of the request's manifest
	Chain *wire.Chain    // of the request's chain
	Own   bool           // this node has signed the statements
}

// HubClient is what NewHub needs of a hub.
type HubClient interface {
	Chain(ctx context.Context, chain string) (*wire.Chain, error)
	Manifest(ctx context.Context, digest string) (*wire.Manifest, error)
	Tree(ctx context.Context, chain string) (*index.Statement, error)
	Soon(ctx context.Context, manifest string) (*wire.Soon, error)
}

// NewHub returns the Answerer of a hub, or of several hubs that fail over to each other.
func NewHub(client HubClient) Answerer { return hubAnswerer{client} }

type hubAnswerer struct{ HubClient }

func (h hubAnswerer) Answer(ctx context.Context, q Request) (*Answer, error) {
	if q.Manifest != "" {
		image, err := h.Manifest(ctx, q.Manifest)
		return &Answer{Image: image}, err
	}
	chain, err := h.Chain(ctx, q.Chain)
	return &Answer{Chain: chain}, err
}

// askFirst asks one answerer after the other until one answers. If none answers, it returns the
// first error that does not wrap chunk.ErrNotFound: the answerer that failed may know the image. If
// there is no such error, it returns the first one, which wraps chunk.ErrNotFound.
func askFirst[T any](answerers []Answerer, ask func(Answerer) (T, error)) (T, error) {
	var none T
	var failed error
	var missing error
	for _, a := range answerers {
		answer, err := ask(a)
		switch {
		case err == nil:
			return answer, nil
		case errors.Is(err, chunk.ErrNotFound):
			missing = cmp.Or(missing, err)
		default:
			failed = cmp.Or(failed, err)
		}
	}
	return none, cmp.Or(failed, missing, error(errUnknown))
}
