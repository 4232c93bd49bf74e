package resolver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/store/origin"
	"lighter/wire"
)

// fakeImage is an image that a hub knows.
type fakeImage struct {
	manifest     string
	diffIDs      []string
	repositories []string
}

func diffIDs(names ...string) (ids []string) {
	for _, name := range names {
		ids = append(ids, digest.FromString(name).String())
	}
	return ids
}

func newImage(name string, layers ...string) fakeImage {
	return fakeImage{manifest: digest.FromString("manifest of " + name).String(), diffIDs: diffIDs(layers...),
		repositories: []string{"registry.test/" + name}}
}

func (f fakeImage) chains(t *testing.T) []string {
	t.Helper()
	chains, err := chainsOf(f.diffIDs)
	if err != nil {
		t.Fatal(err)
	}
	return chains
}

func (f fakeImage) tree() chunk.ID { return chunk.Sum([]byte("tree of " + f.manifest)) }

// answer returns the hub's answer about the image.
func (f fakeImage) answer(t *testing.T) *wire.Manifest {
	t.Helper()
	chains := f.chains(t)
	top := chains[len(chains)-1]
	s := index.Sign(key, top, f.tree())
	return &wire.Manifest{Image: index.SignImage([]ed25519.PrivateKey{key}, f.manifest, top, f.repositories),
		DiffIDs: f.diffIDs, Statement: &s}
}

// from returns the request of a pull of the image from a repository.
func (f fakeImage) from(repository string) Request {
	return Request{Reference: repository + ":1", Manifest: f.manifest}
}

// knowing returns the answers of a hub that knows some images.
func knowing(t *testing.T, images ...fakeImage) func(context.Context, string) (*wire.Manifest, error) {
	return func(_ context.Context, manifest string) (*wire.Manifest, error) {
		for _, image := range images {
			if image.manifest == manifest {
				return image.answer(t), nil
			}
		}
		return nil, chunk.ErrNotFound
	}
}

// newTrusting returns a resolver with TrustImage. Its hub answers that it knows every chain.
func newTrusting(
	t *testing.T, answer func(context.Context, string) (*wire.Manifest, error),
) (*Resolver, *fakeHub, *fakeTrees) {
	t.Helper()
	h := &fakeHub{image: answer}
	h.answer = func(_ context.Context, chain string) (*wire.Chain, error) {
		s := index.Sign(key, chain, chunk.Sum([]byte("by its chain alone")))
		return &wire.Chain{Link: wire.Link{Chain: chain, Statement: &s}, Complete: true}, nil
	}
	r, trees := newResolver(t, h)
	r.config.Trust = TrustImage
	return r, h, trees
}

// claims calls Claim for each chain of an image, the lowest first, as a pull does. pull is the
// request without Chain, Parent and MoreAbove. lazy says which chains are claimed.
func claims(t *testing.T, r *Resolver, chains []string, pull Request) (lazy []bool, errs []error) {
	t.Helper()
	for n, chain := range chains {
		q := pull
		if q.Chain = chain; n > 0 {
			q.Parent = chains[n-1]
		}
		q.MoreAbove = n < len(chains)-1
		r.Hold(chain)
		_, err := r.Claim(t.Context(), q)
		if err != nil {
			r.Drop(chain)
		}
		lazy, errs = append(lazy, err == nil), append(errs, err)
	}
	return lazy, errs
}

// A pull is lazy if the hub knows its manifest from the pull's repository. It makes one lookup.
func TestImageIsClaimedByItsPull(t *testing.T) {
	image := newImage("app", "a", "b", "c")
	image.repositories = []string{"mirror.test:5000/team/app", "registry.test/app", "tools/app"}
	for reference, want := range map[string]bool{
		"registry.test/app:1":            true,
		"registry.test/app":              true,
		"registry.test/app@sha256:abc":   true,
		"registry.test/app:1@sha256:abc": true,
		"mirror.test:5000/team/app:1":    true,
		"mirror.test/team/app:1":         false,
		"registry.test/other:1":          false,
		"registry.test/app/more:1":       false,
		"evil.test/registry.test/app:1":  false,
		"tools/app:1":                    false, // a name that only the hub uses: it has no host
		"":                               false,
		"app":                            false,
		"registry.test/app\nrepository registry.test/x:1": false,
	} {
		r, h, trees := newTrusting(t, knowing(t, image))
		lazy, errs := claims(t, r, image.chains(t), Request{Reference: reference, Manifest: image.manifest})
		if slices.Contains(lazy, !want) {
			t.Errorf("%q: lazy %v, want %v: %v", reference, lazy, want, errs)
		}
		if len(h.asked) != 0 || len(h.manifests) > 1 || want && len(h.manifests) != 1 {
			t.Errorf("%q: asked about manifests %d times, about chains %d times; want 1 (0 or 1 if not lazy) and 0",
				reference, len(h.manifests), len(h.asked))
		}
		if trees.Has(image.tree()) != want {
			t.Errorf("%q: tree fetched: %v, want %v", reference, !want, want)
		}
	}
}

// A pull claims no chain if it names no manifest, if the hub does not know the manifest from the
// pull's repository, or if the chain belongs to another manifest. It makes no difference that the
// hub knows each chain, and that the tree is cached.
func TestForgedClaims(t *testing.T) {
	image := newImage("app", "a", "b")
	other := newImage("other", "x", "y")
	for name, c := range map[string]struct {
		pull Request
		why  string
	}{
		"no image":    {Request{}, "does not name the manifest"},
		"no manifest": {Request{Reference: "registry.test/app:1"}, "does not name the manifest"},
		"no valid manifest": {Request{Reference: "registry.test/app:1", Manifest: "sha256:../../x"},
			"does not name the manifest"},
		"a manifest of the forger's": {newImage("forged").from("registry.test/app"),
			"knows no image with manifest"},
		"from the forger's repository": {image.from("evil.test/app"), "not from this repository"},
		"another image's manifest, from its own repository": {other.from("registry.test/other"),
			"is not one of image manifest"},
		"another image's manifest, from the chains' repository": {other.from("registry.test/app"),
			"not from this repository"},
	} {
		r, h, trees := newTrusting(t, knowing(t, image, other))
		if lazy, errs := claims(t, r, image.chains(t), image.from("registry.test/app")); slices.Contains(lazy, false) {
			t.Fatalf("%s: the image itself is not lazy: %v", name, errs)
		}
		lazy, errs := claims(t, r, image.chains(t), c.pull)
		if slices.Contains(lazy, true) || !strings.Contains(errs[0].Error(), c.why) {
			t.Errorf("%s: claimed %v: %v, want %q", name, lazy, errs, c.why)
		}
		if !trees.Has(image.tree()) || len(h.asked) != 0 {
			t.Errorf("%s: the tree is gone, or the hub was asked about chains: %v", name, h.asked)
		}
	}
}

// With TrustImage, Allow refuses a pull whose manifest the hub does not know from the pull's
// repository. With TrustChain, it refuses no pull.
func TestAllow(t *testing.T) {
	image := newImage("app", "a")
	r, _, _ := newTrusting(t, knowing(t, image))
	chain := image.chains(t)[0]
	allow := func(pull Request) error {
		pull.Chain = chain
		return r.Allow(t.Context(), pull)
	}
	if err := allow(image.from("registry.test/app")); err != nil {
		t.Error(err)
	}
	for name, pull := range map[string]Request{
		"no image":           {},
		"another repository": image.from("evil.test/app"),
		"another manifest":   newImage("x").from("registry.test/app"),
	} {
		r.config.Trust = TrustImage
		if allow(pull) == nil {
			t.Errorf("%s: allowed, want an error", name)
		}
		r.config.Trust = TrustChain
		if err := allow(pull); err != nil {
			t.Errorf("%s: refused although trust is %s: %v", name, TrustChain, err)
		}
	}
}

// A hub or mirror without the pinned key can neither add a repository to an image, nor use a signed
// statement for another manifest or chain.
func TestLyingMirror(t *testing.T) {
	image := newImage("app", "a", "b")
	mine := ed25519.NewKeyFromSeed([]byte(strings.Repeat("m", 32)))
	for name, lie := range map[string]func(m *wire.Manifest){
		"one repository more": func(m *wire.Manifest) {
			m.Image.Repositories = append(m.Image.Repositories, "registry.test/evil")
		},
		"its own key": func(m *wire.Manifest) {
			m.Image = index.SignImage([]ed25519.PrivateKey{mine}, image.manifest, m.Image.Chain,
				[]string{"registry.test/evil"})
		},
		"another manifest": func(m *wire.Manifest) {
			m.Image = index.SignImage([]ed25519.PrivateKey{key}, digest.FromString("x").String(), m.Image.Chain,
				[]string{"registry.test/evil"})
		},
		"other diffIDs": func(m *wire.Manifest) { m.DiffIDs = diffIDs("a", "evil") },
		"no diffIDs":    func(m *wire.Manifest) { m.DiffIDs = nil },
		"another tree":  func(m *wire.Manifest) { m.Statement.Tree = chunk.Sum(nil) },
		"no tree":       func(m *wire.Manifest) { m.Statement = nil },
		"the statement of another chain": func(m *wire.Manifest) {
			s := index.Sign(key, chainID(1), treeID(1))
			m.Statement = &s
		},
	} {
		for _, repository := range []string{"registry.test/app", "registry.test/evil"} {
			r, h, _ := newTrusting(t, func(context.Context, string) (*wire.Manifest, error) {
				answer := image.answer(t)
				lie(answer)
				return answer, nil
			})
			lazy, errs := claims(t, r, image.chains(t), image.from(repository))
			if slices.Contains(lazy, true) {
				t.Errorf("%s, from %s: claimed %v: %v", name, repository, lazy, errs)
			}
			if len(h.manifests) != 1 || len(h.asked) != 0 {
				t.Errorf("%s: asked about manifests %d times, about chains %d times; want 1 and 0",
					name, len(h.manifests), len(h.asked))
			}
		}
	}
}

// An image and its base image each get their own tree, in whatever order they are pulled.
func TestImagesThatShareChains(t *testing.T) {
	base, app := newImage("base", "a", "b"), newImage("app", "a", "b", "c")
	for _, order := range [][]fakeImage{{base, app, base}, {app, base, app}} {
		r, h, trees := newTrusting(t, knowing(t, base, app))
		for n, image := range order {
			if n == 2 { // the trees are gone, and the answers about both images are remembered
				trees.mu.Lock()
				clear(trees.onDisk)
				trees.mu.Unlock()
			}
			lazy, errs := claims(t, r, image.chains(t), image.from(image.repositories[0]))
			if slices.Contains(lazy, false) || !trees.Has(image.tree()) {
				t.Errorf("image %d of %q: lazy %v (%v), its tree is cached: %v",
					n, image.repositories, lazy, errs, trees.Has(image.tree()))
			}
		}
		if len(h.asked) != 0 {
			t.Errorf("asked about chains %v, want none", h.asked)
		}
	}
}

// A pull asks a silent hub only once, if the download of each of its layers takes less than
// answerTTL.
func TestManifestsOfASilentHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		image := newImage("app", "a", "b", "c")
		r, h, _ := newTrusting(t, func(context.Context, string) (*wire.Manifest, error) {
			return nil, errors.New("it is gone")
		})
		parent := ""
		for _, chain := range image.chains(t) {
			q := image.from("registry.test/app")
			q.Chain, q.Parent = chain, parent
			if _, err := r.Claim(t.Context(), q); err == nil ||
				!strings.Contains(err.Error(), "did not answer: it is gone") {
				t.Errorf("error %v, want that the hub did not answer", err)
			}
			parent = chain
			time.Sleep(40 * time.Second)
		}
		if len(h.manifests) != 1 {
			t.Errorf("the hub was asked %d times in a pull, want once", len(h.manifests))
		}
		h.image = knowing(t, image)
		if lazy, errs := claims(t, r, image.chains(t), image.from("registry.test/app")); slices.Contains(lazy, false) {
			t.Errorf("the hub is back, and the image is not lazy: %v", errs)
		}
	})
}

// Simultaneous pulls of one image share a lookup. A cancelled pull does not wait for the answer.
func TestManyPullsOfAManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		image := newImage("app", "a")
		answer := make(chan struct{})
		r, h, _ := newTrusting(t, func(ctx context.Context, manifest string) (*wire.Manifest, error) {
			<-answer
			return knowing(t, image)(ctx, manifest)
		})
		q := image.from("registry.test/app")
		q.Chain = image.chains(t)[0]
		gone, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				r.Hold(q.Chain)
				if _, err := r.Claim(t.Context(), q); err != nil {
					t.Errorf("not lazy: %v", err)
				}
			})
		}
		synctest.Wait()
		cancel()
		if _, err := r.Claim(gone, q); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled pull: error %v, want %v", err, context.Canceled)
		}
		close(answer)
		group.Wait()
		if len(h.manifests) != 1 {
			t.Errorf("asked %d times, want once", len(h.manifests))
		}
	})
}

// If the fetch of an image's index fails after the lower chains were claimed, the top chain can
// soon be claimed: the hub's answer about the manifest still counts.
func TestTopIsClaimedAfterAFailedIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		image := newImage("app", "a", "b")
		r, _, trees := newTrusting(t, knowing(t, image))
		broken := true
		trees.fetch = func(_ context.Context, _ chunk.ID, begun func()) error {
			begun()
			if broken {
				time.Sleep(time.Second)
				return &origin.Unavailable{Err: errors.New("it was cut off")}
			}
			return nil
		}
		chains, q := image.chains(t), image.from("registry.test/app")
		if lazy, errs := claims(t, r, chains, q); !slices.Equal(lazy, []bool{true, false}) {
			t.Fatalf("while its index fails: lazy %v, want only the lower chain: %v", lazy, errs)
		}
		broken = false
		time.Sleep(2 * unknownTTL)
		q.Chain, q.Parent = chains[1], chains[0]
		r.Hold(q.Chain)
		if why, err := r.Claim(t.Context(), q); err != nil {
			t.Errorf("once its index can be fetched: %q, %v; want it claimed", why, err)
		}
		time.Sleep(2 * answerTTL)
	})
}
