package resolver

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

// directory is an Answerer without a hub: a directory with one JSON file per chain or manifest,
// named by its digest. An index in a registry, or tables of contents in layers, would answer the
// same way.
type directory string

var _ Answerer = directory("")

func (d directory) Answer(_ context.Context, q Request) (*Answer, error) {
	if q.Manifest != "" {
		image := &wire.Manifest{}
		return &Answer{Image: image}, d.read(q.Manifest, image)
	}
	chain := &wire.Chain{Complete: true}
	return &Answer{Chain: chain}, d.read(q.Chain, chain)
}

func (d directory) Soon(context.Context, string) (*wire.Soon, error) {
	return nil, chunk.ErrNotFound
}

func (d directory) Tree(_ context.Context, chain string) (*index.Statement, error) {
	var answer wire.Chain
	err := d.read(chain, &answer)
	return answer.Statement, err
}

func (d directory) read(digest string, into any) error {
	b, err := os.ReadFile(filepath.Join(string(d), digest))
	if errors.Is(err, os.ErrNotExist) {
		return chunk.ErrNotFound
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// add puts an answer into the directory.
func (d directory) add(t *testing.T, digest string, answer any) {
	t.Helper()
	b, err := json.Marshal(answer)
	if err == nil {
		err = os.WriteFile(filepath.Join(string(d), digest), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// addImage adds an image of two layers, the chains 0 and 1.
func (d directory) addImage(t *testing.T, s *index.Statement) {
	t.Helper()
	base := wire.Link{Chain: chainID(0), DiffID: chainID(0)}
	top := wire.Link{Chain: chainID(1), DiffID: chainID(1), Parent: chainID(0), Statement: s}
	d.add(t, chainID(0), wire.Chain{Link: base, Above: []wire.Link{top}, Complete: true})
	d.add(t, chainID(1), wire.Chain{Link: top, Complete: true})
}

// Each kind of Answerer knows the image that its source has, and nothing else.
func TestAnswerers(t *testing.T) {
	image := newImage("app", "a", "b")
	top := image.chains(t)[1]
	answer := image.answer(t)
	chain := wire.Chain{Link: wire.Link{Chain: top, Statement: answer.Statement}, Complete: true}
	files := directory(t.TempDir())
	files.add(t, image.manifest, answer)
	files.add(t, top, chain)
	hub := &fakeHub{
		image: knowing(t, image),
		answer: func(_ context.Context, asked string) (*wire.Chain, error) {
			if asked != top {
				return nil, chunk.ErrNotFound
			}
			return &chain, nil
		},
		tree: func(_ context.Context, asked string) (*index.Statement, error) {
			if asked != top {
				return nil, chunk.ErrNotFound
			}
			return answer.Statement, nil
		},
	}
	for name, a := range map[string]Answerer{"hub": NewHub(hub), "directory": files} {
		t.Run(name, func(t *testing.T) { testAnswerer(t, a, image.manifest, top) })
	}
}

// testAnswerer tests an Answerer. a has one image, whose statements are signed by key.
func testAnswerer(t *testing.T, a Answerer, manifest, top string) {
	keys := []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}
	for _, q := range []Request{{Chain: top}, {Chain: top, Manifest: manifest, Reference: "registry.test/app:1"}} {
		answer, err := a.Answer(t.Context(), q)
		if err != nil {
			t.Fatalf("%+v: %v", q, err)
		}
		if (answer.Image != nil) == (answer.Chain != nil) || (answer.Image != nil) != (q.Manifest != "") {
			t.Errorf("%+v: the answer has a manifest: %v, a chain: %v; want the one that was requested, and no other",
				q, answer.Image != nil, answer.Chain != nil)
		}
		if facts, err := answer.verify(q, keys); err != nil || facts[top] == nil || facts[top].own == nil {
			t.Errorf("%+v: facts %+v, error %v; want a verified statement", q, facts[top], err)
		}
	}
	if s, err := a.Tree(t.Context(), top); err != nil || s.Verify(top, keys) != nil {
		t.Errorf("statement %+v of the tree, error %v; want a verified statement", s, err)
	}
	for _, q := range []Request{{Chain: chainID(9)}, {Chain: top, Manifest: chainID(9)}} {
		if _, err := a.Answer(t.Context(), q); !errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("%+v: error %v, want chunk.ErrNotFound", q, err)
		}
	}
	if _, err := a.Tree(t.Context(), chainID(9)); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("tree of an unknown chain: error %v, want chunk.ErrNotFound", err)
	}
}

// If an answerer does not know an image, fails, or sends a statement that no pinned key has signed,
// the next answerer is asked.
func TestSecondAnswerer(t *testing.T) {
	forged := index.Sign(ed25519.NewKeyFromSeed([]byte(strings.Repeat("f", 32))), chainID(1), treeID(1))
	for name, c := range map[string]struct {
		hub    func(context.Context, string) (*wire.Chain, error)
		signed *index.Statement // that the second answerer has
		why    string           // why the image is not lazy; empty: it is lazy
	}{
		"the hub does not know the image": {stack(-1), statement(1), ""},
		"the hub fails":                   {broken, statement(1), ""},
		"the hub's statement is forged": {func(ctx context.Context, chain string) (*wire.Chain, error) {
			answer, err := stack(1)(ctx, chain)
			if err == nil && len(answer.Above) > 0 {
				answer.Above[0].Statement = &forged
			}
			return answer, err
		}, statement(1), ""},
		"the hub knows the image":                         {stack(1), &forged, ""},
		"no answerer knows the image":                     {stack(-1), nil, "does not know this chain"},
		"the hub fails, the second does not know":         {broken, nil, "did not answer: the hub is broken"},
		"the second answerer's statement is forged":       {stack(-1), &forged, "refused"},
		"the hub fails, the second's statement is forged": {broken, &forged, "did not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				files := directory(t.TempDir())
				if c.signed != nil {
					files.addImage(t, c.signed)
				}
				h := &fakeHub{answer: c.hub, key: key, local: true}
				trees := &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}
				root := t.TempDir()
				keys, err := NewKeys(root, nil, h)
				if err != nil {
					t.Fatal(err)
				}
				r := open(t, h, Config{Root: root, Trust: TrustChain, Answerers: []Answerer{NewHub(h), files},
					Trees: trees, Keys: keys, Log: slog.New(slog.DiscardHandler)})
				for n := range 2 {
					err := claimErr(t, r, n)
					if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
						t.Errorf("chain %d: error %v, want %q", n, err, c.why)
					}
				}
				if trees.Has(treeID(1)) != (c.why == "") || len(h.asked) != 1 {
					t.Errorf("tree fetched: %v, hub asked %d times; want one lookup",
						trees.Has(treeID(1)), len(h.asked))
				}
			})
		})
	}
}

func broken(context.Context, string) (*wire.Chain, error) {
	return nil, errors.New("the hub is broken")
}

// named is an Answerer that answers under a name, or with an error.
type named struct {
	Answerer
	name string
	err  error
}

func (n named) Answer(ctx context.Context, q Request) (*Answer, error) {
	if n.err != nil {
		return nil, n.err
	}
	answer, err := n.Answerer.Answer(ctx, q)
	answer.Source = n.name
	return answer, err
}

// The reason of a claim names the source that has answered, and why those before it have not. If
// none answers, the reason has the words of each, in their order.
func TestReasonsNameSources(t *testing.T) {
	image := newImage("app", "a", "b")
	files := directory(t.TempDir())
	files.add(t, image.manifest, image.answer(t))
	tables := named{files, "the tables of registry.test/app", nil}
	silent := named{files, "", errors.New("the index did not answer")}
	untrusted := named{files, "", missingError("the repository is not trusted")}
	elsewhere := image
	elsewhere.repositories = []string{"registry.test/other"}
	const part, whole = "it is part of an image that comes from ", "its tree comes from "
	const hubs, fromTables = "hub http://hub.test", "the tables of registry.test/app"
	unknown := "the hub knows no image with manifest " + image.manifest + ", and trust is image"
	for name, c := range map[string]struct {
		known     []fakeImage // by the hub
		answerers func(hub Answerer) []Answerer
		lower     string // why the lower layer is lazy, or not
		top       string
		missing   bool // the error is that no source knows the image
	}{
		"the hub first": {[]fakeImage{image}, func(hub Answerer) []Answerer { return []Answerer{hub, tables} },
			part + hubs, whole + hubs, false},
		"the hub last": {[]fakeImage{image}, func(hub Answerer) []Answerer { return []Answerer{tables, hub} },
			part + fromTables, whole + fromTables, false},
		"the hub knows nothing": {nil, func(hub Answerer) []Answerer { return []Answerer{hub, tables} },
			part + fromTables + " (asked before: " + unknown + ")",
			whole + fromTables + " (asked before: " + unknown + ")", false},
		"the hub knows it from elsewhere": {[]fakeImage{elsewhere},
			func(hub Answerer) []Answerer { return []Answerer{hub, tables} },
			part + fromTables + " (asked before: " + hubs + " has this chain, but not from this repository: manifest " +
				image.manifest + " is that of an image in registry.test/other, and is pulled from registry.test/app " +
				"(if that is the hub's registry, name it in the hub's registry_hosts))", "", false},
		"none knows it": {nil, func(hub Answerer) []Answerer { return []Answerer{untrusted, hub} },
			"the repository is not trusted; " + unknown, "", true},
		"one fails": {nil, func(hub Answerer) []Answerer { return []Answerer{hub, silent} },
			unknown + "; the index did not answer", "", false},
	} {
		r, _, trees := newTrusting(t, knowing(t, c.known...))
		r.config.Answerers = c.answerers(r.config.Answerers[0])
		parent := ""
		for i, want := range []string{c.lower, c.top} {
			q := image.from("registry.test/app")
			q.Chain, q.Parent = image.chains(t)[i], parent
			parent = q.Chain
			r.Hold(q.Chain)
			why, err := r.Claim(t.Context(), q)
			if got := why; want != "" && got != want && (err == nil || err.Error() != want) {
				t.Errorf("%s: layer %d: %q, %v; want %q", name, i, got, err, want)
			}
			if i == 0 && err != nil && errors.Is(err, chunk.ErrNotFound) != c.missing {
				t.Errorf("%s: error %v, missing: want %v", name, err, c.missing)
			}
		}
		if c.top != "" { // another tree than the one that is on this machine already
			s := index.Sign(key, image.chains(t)[1], treeID(7))
			r.Hold(s.Chain)
			trees.mu.Lock()
			clear(trees.onDisk)
			trees.onDisk[treeID(7)] = true
			trees.mu.Unlock()
			if err := r.keep(&s); err != nil {
				t.Fatal(err)
			}
			q := image.from("registry.test/app")
			q.Chain, q.Parent = s.Chain, image.chains(t)[0]
			why, err := r.Claim(t.Context(), q)
			if err != nil || !strings.HasPrefix(why, "its tree is on this machine, from an earlier pull") {
				t.Errorf("%s: with a tree of an earlier pull: %q, %v; want that it is said", name, why, err)
			}
		}
		if name == "one fails" && r.Unanswered() != 0 {
			t.Errorf("%s: %d pulls went on without a hub, want 0: it answered", name, r.Unanswered())
		}
	}
}

// Mount asks one answerer after the other for a chain's tree until one knows it.
func TestMountAsksEachAnswerer(t *testing.T) {
	files := directory(t.TempDir())
	files.addImage(t, statement(1))
	h := &fakeHub{answer: stack(-1), key: key, local: true,
		tree: func(context.Context, string) (*index.Statement, error) {
			return nil, chunk.ErrNotFound
		}}
	r, trees := newResolver(t, h)
	r.config.Answerers = append(r.config.Answerers, files)
	r.Hold(chainID(1))
	if dir, err := r.Mount(t.Context(), chainID(1)); err != nil || !trees.Has(treeID(1)) {
		t.Errorf("mounted at %q, error %v; want the tree of the second answerer", dir, err)
	}
	r.Hold(chainID(5))
	if _, err := r.Mount(t.Context(), chainID(5)); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("an unknown chain: error %v, want chunk.ErrNotFound", err)
	}
}

// On a node without a hub, no reason and no line of the log is about a hub.
func TestNoHub(t *testing.T) {
	image := newImage("app", "a", "b")
	unsigned := image.answer(t)
	unsigned.Statement = nil
	for name, c := range map[string]struct {
		answer *wire.Manifest
		fetch  error
		why    string
	}{
		"no statement": {unsigned, nil, "the tables: it knows no image that has this chain"},
		"no index":     {image.answer(t), errors.New("the index is damaged"), "the index is damaged"},
	} {
		files := directory(t.TempDir())
		files.add(t, image.manifest, c.answer)
		var log strings.Builder
		trees := &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}
		trees.fetch = func(context.Context, chunk.ID, func()) error { return c.fetch }
		root := t.TempDir()
		keys, err := NewKeys(root, nil, &fakeHub{key: key, local: true})
		if err != nil {
			t.Fatal(err)
		}
		r := open(t, &fakeHub{}, Config{Root: root, Trust: TrustImage, Answerers: []Answerer{named{files, "the tables",
			nil}},
			Trees: trees, Keys: keys, Log: slog.New(slog.NewTextHandler(&log, nil))})
		lazy, errs := claims(t, r, image.chains(t), image.from("registry.test/app"))
		if lazy[1] || !strings.Contains(errs[1].Error(), c.why) ||
			strings.Contains(errors.Join(errs...).Error()+log.String(), "hub") || r.Unanswered() != 0 {
			t.Errorf("%s: lazy %v, %v, %d unanswered, log %q; want %q, and nothing of a hub", name, lazy, errs,
				r.Unanswered(), log.String(), c.why)
		}
	}
}
