package resolver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

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
// the next Answerer is asked. An error of Answer names the source: users see it.
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
	// Source names what has answered, for users: hub https://hub.example.org, for example.
	Source string
}

// HubClient is what NewHub needs of a hub.
type HubClient interface {
	URL() string // for users
	Chain(ctx context.Context, chain string) (*wire.Chain, error)
	Manifest(ctx context.Context, digest string) (*wire.Manifest, error)
	Tree(ctx context.Context, chain string) (*index.Statement, error)
	Soon(ctx context.Context, manifest string) (*wire.Soon, error)
}

// NewHub returns the Answerer of a hub, or of several hubs that fail over to each other.
func NewHub(client HubClient) Answerer { return hubAnswerer{client} }

type hubAnswerer struct{ HubClient }

func (h hubAnswerer) Answer(ctx context.Context, q Request) (*Answer, error) {
	answer := &Answer{Source: "hub " + h.URL()}
	var err error
	unknown := errNoChain
	if q.Manifest != "" {
		answer.Image, err = h.Manifest(ctx, q.Manifest)
		unknown = missingError("the hub knows no image with manifest " + q.Manifest + ", and trust is image")
	} else {
		answer.Chain, err = h.Chain(ctx, q.Chain)
	}
	switch {
	case err == nil:
		return answer, nil
	case errors.Is(err, chunk.ErrNotFound):
		return nil, unknown
	}
	return nil, hubError{err}
}

// A hubError says that no hub has answered a lookup.
type hubError struct{ cause error }

func (e hubError) Error() string { return "the hub did not answer: " + e.cause.Error() }
func (e hubError) Unwrap() error { return e.cause }

// isHub reports whether an answerer is that of hubs.
func isHub(a Answerer) bool {
	_, is := a.(hubAnswerer)
	return is
}

// A pausedError says that hubs are not asked for a while. It does not wrap the cause, which may say
// when to ask again.
type pausedError struct{ cause error }

// errPaused is the cause of a pausedError if the while is over by now.
var errPaused = errors.New("an index could not be fetched")

func (e pausedError) Error() string { return "the hub is not asked for a while: " + e.cause.Error() }

// A noAnswerError says how long a pull has waited for an answerer, and for those before it.
type noAnswerError time.Duration

func (e noAnswerError) Error() string { return fmt.Sprintf("no answer within %s", time.Duration(e)) }

// askFirst asks one answerer after the other until one answers. If none answers, the error has the
// texts of all errors. It wraps the first error that does not wrap chunk.ErrNotFound: the answerer
// that failed may know the image. If there is no such error, it wraps the first one.
func askFirst[T any](answerers []Answerer, ask func(Answerer) (T, error)) (T, error) {
	var none T
	var all []error
	for _, a := range answerers {
		answer, err := ask(a)
		if err == nil {
			return answer, nil
		}
		all = append(all, err)
	}
	return none, firstOf(all)
}

// firstOf returns the error of answerers that have all failed.
func firstOf(all []error) error {
	switch len(all) {
	case 0:
		return errUnknown
	case 1:
		return all[0]
	}
	cause := all[0]
	for _, err := range all {
		if !errors.Is(err, chunk.ErrNotFound) {
			cause = err
			break
		}
	}
	return noneError{cause, texts(all)}
}

// texts returns the texts of errors, in one line.
func texts(all []error) string {
	var lines []string
	for _, err := range all {
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "; ")
}

// A noneError says why none of several answerers has answered. It wraps the error that counts most.
type noneError struct {
	cause error
	text  string
}

func (e noneError) Error() string { return e.text }
func (e noneError) Unwrap() error { return e.cause }
