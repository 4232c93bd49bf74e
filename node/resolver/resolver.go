package resolver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/flight"
)

// Trust says which pulls may claim a chain.
type Trust string

const (
	// TrustImage lets a pull claim a chain only if an answerer knows the pull's manifest, and knows
	// it from the pull's repository. A chainID proves nothing, because anybody can put the layer
	// digests of one image into the config of another image. A manifest proves more: it can be
	// fetched from its repository only with the registry's permission.
	TrustImage Trust = "image"
	// TrustChain lets every pull claim a chain that names its chainID.
	TrustChain Trust = "chain"
)

// Trees is what a Resolver needs of the trees on this machine.
type Trees interface {
	TreeStore
	// CheckMountable returns an error if this machine cannot mount trees.
	CheckMountable() error
	// Ensure fetches a tree's index unless it is cached, and starts to prefetch. It calls begun as
	// soon as the first part of the index (header and page table) was verified. If the tree is
	// cached, it returns at once. For a tree that is not cached, callers never call it
	// concurrently.
	Ensure(ctx context.Context, tree chunk.ID, begun func()) error
	Mount(ctx context.Context, tree chunk.ID) (dir string, err error)
	// NoteStart is called when a container is about to start from a mounted tree.
	NoteStart(tree chunk.ID)
}

// Config is the configuration of a Resolver. All fields are required, except Refused.
type Config struct {
	Root      string // the node's root
	Trust     Trust
	Answerers []Answerer // in order of preference
	// LastReceived returns when a source of indexes last accepted a connection or sent anything, or
	// zero if none ever did. It distinguishes a slow source from a dead one.
	LastReceived func() time.Time
	Trees        Trees
	Keys         *Keys
	// Refused returns why a tree must never be mounted, or nil. If it is nil, no tree is refused.
	Refused func(tree chunk.ID) error
	Log     *slog.Logger
}

// Resolver decides which chains a node claims. It is safe for concurrent use. Callers hold a chain
// while they use it (Chains).
type Resolver struct {
	*Chains
	config     Config
	answers    *answers
	slots      slots
	fetches    flight.Group[chunk.ID] // by tree
	unanswered atomic.Int64
}

// New returns a resolver with the statements that earlier daemons kept below the node's root.
func New(c Config) (*Resolver, error) {
	chains, err := openChains(c.Root, c.Trees, c.Keys, c.Log)
	if err != nil {
		return nil, err
	}
	if c.Refused == nil {
		c.Refused = func(chunk.ID) error { return nil }
	}
	r := &Resolver{Chains: chains, config: c, slots: newSlots()}
	others := slices.ContainsFunc(c.Answerers, func(a Answerer) bool { return !isHub(a) })
	r.answers = newAnswers(others, r.ask)
	return r, nil
}

// Claim decides whether the node claims a layer's chain, so that the runtime need not download the
// layer. If the chain is claimed, why tells users the reason. Otherwise err is the reason. If the
// chain is claimed as the top of an image, its tree is on disk when Claim returns. The caller holds
// the chain.
func (r *Resolver) Claim(ctx context.Context, q Request) (why string, err error) {
	why, err = r.claim(ctx, q)
	if cause := r.refusedFor(q.Chain); err != nil && cause != nil {
		err = fmt.Errorf("the chain's statement on this machine is refused: %v; and %w", cause, err)
	}
	if err == nil {
		r.log.Debug("resolved a chain", "chain", q.Chain, "image", q.Reference, "lazy", true, "reason", why)
		return why, nil
	}
	level := slog.LevelDebug
	if q.Parent == "" { // one line per image that is not lazy
		level = slog.LevelInfo
	}
	r.log.Log(ctx, level, "resolved a chain", "chain", q.Chain, "image", q.Reference, "lazy", false, "err", err)
	return "", err
}

func (r *Resolver) claim(ctx context.Context, q Request) (why string, err error) {
	if err := r.config.Trees.CheckMountable(); err != nil {
		return "", err
	}
	if err := r.Allow(ctx, q); err != nil {
		return "", err
	}
	if err := r.config.Refused(r.Tree(q.Chain)); err != nil {
		return "", err
	}
	if r.isCached(q.Chain) {
		if !q.MoreAbove { // the top of an image: a container will probably start soon, so prefetch
			err = r.config.Trees.Ensure(ctx, r.Tree(q.Chain), func() {})
		}
		return r.whyCached(q), err
	}
	p := r.patience(q)
	f, err := r.lookup(ctx, q, p)
	switch {
	case err != nil:
	case !f.fromHub: // the index is on this machine
		p = full
	case p == brief:
		err = r.answers.paused() // the facts may be remembered, but the index is still to be fetched
	}
	if err == nil { // an answer about a lower chain may have given facts without a verified statement
		err = f.claimable()
	}
	for _, s := range []*index.Statement{f.own, f.above} {
		if err == nil && s != nil {
			err = r.config.Refused(s.Tree)
		}
	}
	if err != nil {
		return "", err
	}
	why = "it is part of an image that comes from " + f.source
	imageEndsHere := f.own != nil && (f.images == 0 || !q.MoreAbove)
	switch {
	case imageEndsHere:
		why, err = "its tree comes from "+f.source, r.ensure(ctx, f.own, p)
	case f.images == 1 && !r.config.Trees.Has(f.above.Tree) && !r.isCached(f.above.Chain):
		err = waitBegun(ctx, r.fetch(f.above, p))
	}
	if err != nil && ctx.Err() == nil {
		r.answers.refuse(r.withTrust(q), err)
	}
	return why, err
}

// whyCached says where the tree of a cached chain comes from, if a pull has asked in the last
// minute. The tree of an earlier pull stays, also if another source answers now.
func (r *Resolver) whyCached(q Request) string {
	f := r.answers.remembered(r.withTrust(q))
	switch {
	case f.own == nil:
		return "its tree is on this machine"
	case f.own.Tree != r.Tree(q.Chain):
		return "its tree is on this machine, from an earlier pull; there is another one now, from " + f.source
	}
	return "its tree comes from " + f.source
}

// patience returns the patience of a pull. It is full once the chain below was claimed: to unpack
// this layer on top of that chain, the node needs that chain's tree.
func (r *Resolver) patience(q Request) patience {
	if q.Parent != "" && r.stateOf(q.Parent).holders > 0 {
		return full
	}
	return brief
}

// ErrUnnamed says that a pull does not name its image, and that TrustImage requires it.
var ErrUnnamed = errors.New("the client of this pull does not name the manifest of the image, and trust is image")

// Allow returns an error if a pull must not get a chain. The result does not depend on the trees
// that are on this machine.
func (r *Resolver) Allow(ctx context.Context, q Request) error {
	if r.config.Trust == TrustChain {
		return nil
	}
	repository := q.Repository()
	if digest.Digest(q.Manifest).Validate() != nil || repository == "" {
		return ErrUnnamed
	}
	f, err := r.lookup(ctx, q, r.patience(q))
	switch {
	case f.image == nil && err == nil:
		return errUnknown
	case f.image == nil:
		return err
	}
	// The image is verified. err says only why the chain's tree cannot be fetched now.
	return allow(f.image, q, f.source)
}

// allow returns an error if an image is not one of the repository of a pull.
func allow(image *index.ImageStatement, q Request, source string) error {
	if image.Allows(q.Repository()) {
		return nil
	}
	return missingError(fmt.Sprintf("%s has this chain, but not from this repository: "+
		"manifest %s is that of an image in %s, and is pulled from %s "+
		"(if that is the hub's registry, name it in the hub's registry_hosts)",
		source, q.Manifest, abbreviate(image.Repositories), q.Repository()))
}

// abbreviate lists the first names, and the number of further names.
func abbreviate(names []string) string {
	const shown = 3
	text := strings.Join(names[:min(len(names), shown)], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// lookup returns the facts about a request's chain. If an answerer is about to have the image,
// lookup waits for it.
func (r *Resolver) lookup(ctx context.Context, q Request, p patience) (facts, error) {
	q = r.withTrust(q)
	var wait soonWait
	for {
		f, err := r.answers.lookup(ctx, q, p)
		if !errors.Is(err, chunk.ErrNotFound) || !r.awaitSoon(ctx, q, &wait) {
			return f, err
		}
		r.answers.forget(q)
	}
}

// withTrust removes the manifest from a request under TrustChain, because answers then depend only
// on the chain.
func (r *Resolver) withTrust(q Request) Request {
	q.Pulled = q.Manifest
	if r.config.Trust == TrustChain {
		q.Manifest = ""
	}
	return q
}

// ask asks the answerers. It logs failures, and returns errors that tell users why the chain is not
// lazy.
func (r *Resolver) ask(q Request) (answer map[string]*facts, err error) {
	end := time.Now().Add(lookupTimeout)
	ctx, cancel := context.WithDeadlineCause(context.Background(), end, noAnswerError(lookupTimeout))
	defer cancel()
	// endOf returns until when an answerer is waited for, and how long that is.
	endOf := func(n int) (time.Time, time.Duration) {
		rest := nextTime * time.Duration(len(r.config.Answerers)-n-1)
		return end.Add(-rest), lookupTimeout - rest
	}
	isHubSilent := false
	err = retry(ctx, func() (err error) {
		var before []error // why the answerers before the one that answers have not
		answer, err = askFirst(r.config.Answerers, func(a Answerer) (map[string]*facts, error) {
			until, waited := endOf(len(before))
			ctx, cancel := context.WithDeadlineCause(ctx, until, noAnswerError(waited))
			defer cancel()
			all, err := r.askOne(ctx, a, q, before)
			if before = append(before, err); errors.As(err, new(hubError)) {
				isHubSilent = true
			}
			return all, err
		})
		return err
	}, func(err error) (time.Duration, bool) {
		wait, ok := retryAfter(err)
		first, _ := endOf(0)
		return wait, ok && time.Now().Add(wait).Before(first)
	})
	switch {
	case err == nil:
		if f := answer[q.Chain]; f != nil && f.refused != nil {
			r.log.Warn("refused a statement", "chain", q.Chain, "manifest", q.Manifest, "source", f.source,
				"err", f.refused)
		}
	case errors.Is(err, chunk.ErrNotFound):
	case errors.As(err, new(refusedError)):
		r.log.Warn("refused a statement", "chain", q.Chain, "manifest", q.Manifest, "err", err)
	default:
		if isHubSilent {
			r.unanswered.Add(1)
		}
		r.log.Warn("no source answered the lookup for a pull", "chain", q.Chain, "manifest", q.Manifest, "err", err)
	}
	return answer, err
}

// askOne asks one answerer and verifies the answer. before are the errors of the answerers that
// were asked before it.
func (r *Resolver) askOne(ctx context.Context, a Answerer, q Request, before []error) (map[string]*facts, error) {
	if q.withoutHubs && isHub(a) {
		return nil, pausedError{cmp.Or(r.answers.paused(), errPaused)}
	}
	answer, err := a.Answer(ctx, q)
	if err != nil {
		return nil, err
	}
	keys, err := r.keys.of(ctx, answer.Own)
	if err != nil {
		return nil, hubError{err}
	}
	all, err := answer.verify(q, keys)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", answer.Source, err)
	}
	if q.Repository() != "" && answer.Image != nil {
		if err := allow(&answer.Image.Image, q, answer.Source); err != nil { // the next one may know it from there
			return nil, err
		}
	}
	source := answer.Source
	if len(before) > 0 {
		source += " (asked before: " + texts(before) + ")"
	}
	for _, f := range all {
		f.complete = f.complete && len(r.config.Answerers) == 1 // another answerer may know more
		f.source, f.fromHub = source, isHub(a)
	}
	return all, nil
}

// pause makes brief pulls go on without a hub for hubPause, after an index could not be fetched. It
// does nothing if the node has no hub.
func (r *Resolver) pause(cause error) {
	if !slices.ContainsFunc(r.config.Answerers, isHub) {
		return
	}
	r.answers.pause(cause)
	r.unanswered.Add(1)
	r.log.Warn("pulls go on without the hub for a while", "duration", hubPause, "err", cause)
}

// Unanswered returns how many lookups and index fetches have failed since the node started.
func (r *Resolver) Unanswered() int64 { return r.unanswered.Load() }

// Mount mounts a chain's tree and returns the directory. If the chain's tree is not on this
// machine, Mount asks for the chain's statement and waits for the index, for indexTimeout at most
// once the index has a slot. The caller holds the chain. A chain whose statement is refused can be
// mounted if its tree is known and on this machine. A tree that is refused itself (Config.Refused)
// is never mounted.
func (r *Resolver) Mount(ctx context.Context, chain string) (string, error) {
	tree := r.Tree(chain)
	if tree.IsZero() || !r.config.Trees.Has(tree) {
		s, err := r.askTree(ctx, chain)
		if err == nil {
			tree, err = s.Tree, r.ensure(ctx, s, full)
		} else {
			err = fmt.Errorf("get the statement of chain %s, whose tree is not on this machine: %w", chain, err)
		}
		if cause := r.refusedFor(chain); err != nil && cause != nil {
			err = fmt.Errorf("the statement of chain %s on this machine is refused: %v; and %w", chain, cause, err)
		}
		if err != nil {
			return "", err
		}
	}
	if err := r.config.Refused(tree); err != nil {
		return "", fmt.Errorf("tree %s is never mounted again: %w", tree.Short(), err)
	}
	return r.config.Trees.Mount(ctx, tree)
}

// NoteStart is called when a container is about to start from a mounted chain.
func (r *Resolver) NoteStart(chain string) {
	if tree := r.Tree(chain); !tree.IsZero() {
		r.config.Trees.NoteStart(tree)
	}
}

// Image returns the verified statement about the image with a manifest. The error wraps
// chunk.ErrNotFound if no answerer knows the manifest.
func (r *Resolver) Image(ctx context.Context, manifest string) (*index.ImageStatement, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, treeTimeout, errors.New("no source answered in time"))
	defer cancel()
	answer, err := askFirst(r.config.Answerers, func(a Answerer) (map[string]*facts, error) {
		return r.askOne(ctx, a, Request{Manifest: manifest}, nil)
	})
	if err != nil {
		return nil, fmt.Errorf("get the statement about manifest %s: %w", manifest, err)
	}
	for _, f := range answer { // all are about the same image
		return f.image, nil
	}
	return nil, fmt.Errorf("the image with manifest %s has no layers", manifest)
}

// ImageChain returns the chain of the image with a manifest, if the hub signs that the image is one
// of repository ([HOST[:PORT]/]PATH). The error wraps chunk.ErrNotFound if there is no such image.
func (r *Resolver) ImageChain(ctx context.Context, manifest, repository string) (string, error) {
	image, err := r.Image(ctx, manifest)
	if err != nil {
		return "", err
	}
	if !image.Allows(repository) {
		return "", missingError(fmt.Sprintf("manifest %s is known, but not from %s", manifest, repository))
	}
	return image.Chain, nil
}

// askTree asks for the statement of a chain's tree, and verifies it.
func (r *Resolver) askTree(ctx context.Context, chain string) (*index.Statement, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, treeTimeout, errors.New("no source answered in time"))
	defer cancel()
	s, err := askFirst(r.config.Answerers, func(a Answerer) (*index.Statement, error) {
		s, err := a.Tree(ctx, chain)
		if err != nil {
			return nil, err
		}
		keys, err := r.keys.of(ctx, r.keys.isOwn(s))
		if err != nil {
			return nil, err
		}
		if err := s.Verify(chain, keys); err != nil {
			return nil, refusedError{err}
		}
		return s, nil
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	return s, err
}
