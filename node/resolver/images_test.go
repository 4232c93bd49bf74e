package resolver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/format/index"

	"lighter/wire"
)

// fakeManifests answers about manifests.
type fakeManifests struct {
	mu     sync.Mutex
	asked  []string
	answer func(ctx context.Context, manifest string) (*wire.Manifest, error)
}

func (f *fakeManifests) Manifest(ctx context.Context, manifest string) (*wire.Manifest, error) {
	f.mu.Lock()
	f.asked = append(f.asked, manifest)
	f.mu.Unlock()
	return f.answer(ctx, manifest)
}

// fakeImage is an image as a hub knows it.
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
	return fakeImage{manifest: digest.FromString("manifest of " + name).String(), diffIDs: diffIDs(layers...), repositories: []string{"registry.test/" + name}}
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

// says is the hub's answer about the image.
func (f fakeImage) says(t *testing.T) *wire.Manifest {
	t.Helper()
	chains := f.chains(t)
	top := chains[len(chains)-1]
	s := index.Sign(key, top, f.tree())
	return &wire.Manifest{Image: index.SignImage([]ed25519.PrivateKey{key}, f.manifest, top, f.repositories), DiffIDs: f.diffIDs, Statement: &s}
}

// labels are those of a pull of the image from a repository.
func (f fakeImage) labels(repository string) map[string]string {
	return map[string]string{imageLabel: repository + ":1", manifestLabel: f.manifest}
}

// knowing answers about these images.
func knowing(t *testing.T, images ...fakeImage) func(context.Context, string) (*wire.Manifest, error) {
	return func(_ context.Context, manifest string) (*wire.Manifest, error) {
		for _, image := range images {
			if image.manifest == manifest {
				return image.says(t), nil
			}
		}
		return nil, chunk.ErrNotFound
	}
}

// newTrusting returns what claims chains for images alone. Its hub knows every chain.
func newTrusting(t *testing.T, answer func(context.Context, string) (*wire.Manifest, error)) (*Images, *fakeManifests, *fakeHub, *fakeTrees) {
	t.Helper()
	h := &fakeHub{}
	h.answer = func(_ context.Context, chain string) (*wire.Chain, error) {
		s := index.Sign(key, chain, chunk.Sum([]byte("by its chain alone")))
		return &wire.Chain{Link: wire.Link{Chain: chain, Statement: &s}, Complete: true}, nil
	}
	r, trees := newResolver(t, h)
	m := &fakeManifests{answer: answer}
	return NewImages(r, m), m, h, trees
}

// claims claims chains, each on the one before, as containerd does in a pull.
func claims(t *testing.T, i *Images, chains []string, labels map[string]string) (lazy []bool, whys []string) {
	t.Helper()
	parent := ""
	for n, chain := range chains {
		labels := maps.Clone(labels)
		if labels != nil {
			labels[layersLabel] = strings.Repeat(",", len(chains)-1-n)
		}
		i.Hold(chain)
		known, why := i.Claim(t.Context(), chain, parent, labels)
		if !known {
			i.Drop(chain)
		}
		lazy, whys, parent = append(lazy, known), append(whys, why), chain
	}
	return lazy, whys
}

// A pull of a manifest from a repository that has it is lazy, and asks one question.
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
		"tools/app:1":                    false, // a name of the hub's own, no host
		"":                               false,
		"app":                            false,
		"registry.test/app\nrepository registry.test/x:1": false,
	} {
		i, m, h, trees := newTrusting(t, knowing(t, image))
		lazy, whys := claims(t, i, image.chains(t), map[string]string{imageLabel: reference, manifestLabel: image.manifest})
		if slices.Contains(lazy, !want) {
			t.Errorf("%q: lazy %v, want %v: %q", reference, lazy, want, whys)
		}
		if len(h.asked) != 0 || len(m.asked) > 1 || want && len(m.asked) != 1 {
			t.Errorf("%q: asked of manifests %d times, of chains %d", reference, len(m.asked), len(h.asked))
		}
		if trees.Has(image.tree()) != want {
			t.Errorf("%q: the tree is here: %v", reference, !want)
		}
	}
}

// What a pull says that no hub knows, or says nothing, claims no chain, though the hub
// knows each of its chains, and their trees are on this machine.
func TestForgedClaims(t *testing.T) {
	image := newImage("app", "a", "b")
	other := newImage("other", "x", "y")
	for name, c := range map[string]struct {
		labels map[string]string
		why    string
	}{
		"no labels":                       {nil, "does not say of which manifest"},
		"no manifest":                     {map[string]string{imageLabel: "registry.test/app:1"}, "does not say of which manifest"},
		"a manifest that is none":         {map[string]string{imageLabel: "registry.test/app:1", manifestLabel: "sha256:../../x"}, "does not say of which manifest"},
		"a manifest of the forger's":      {newImage("forged").labels("registry.test/app"), "knows no image with manifest"},
		"from the forger's repository":    {image.labels("evil.test/app"), "not from this repository"},
		"the manifest of another image":   {other.labels("registry.test/other"), "is not one of image manifest"},
		"a chain of another's repository": {other.labels("registry.test/app"), "is not one of image manifest"},
	} {
		i, _, h, trees := newTrusting(t, knowing(t, image, other))
		if lazy, whys := claims(t, i, image.chains(t), image.labels("registry.test/app")); slices.Contains(lazy, false) {
			t.Fatalf("%s: the image itself is not lazy: %q", name, whys)
		}
		lazy, whys := claims(t, i, image.chains(t), c.labels)
		if slices.Contains(lazy, true) || !strings.Contains(whys[0], c.why) {
			t.Errorf("%s: claimed %v: %q", name, lazy, whys)
		}
		if !trees.Has(image.tree()) || len(h.asked) != 0 {
			t.Errorf("%s: the tree is gone, or chains were asked about: %v", name, h.asked)
		}
	}
}

// What is known of a chain allows it only to a pull that may claim it.
func TestAllow(t *testing.T) {
	image := newImage("app", "a")
	i, _, _, _ := newTrusting(t, knowing(t, image))
	chain := image.chains(t)[0]
	if err := i.Allow(t.Context(), chain, "", image.labels("registry.test/app")); err != nil {
		t.Error(err)
	}
	for name, labels := range map[string]map[string]string{"no labels": nil, "another repository": image.labels("evil.test/app"), "another manifest": newImage("x").labels("registry.test/app")} {
		if i.Allow(t.Context(), chain, "", labels) == nil {
			t.Errorf("%s: allowed", name)
		}
		if err := i.Resolver.Allow(t.Context(), chain, "", labels); err != nil {
			t.Errorf("%s: trust in chains refuses it: %v", name, err)
		}
	}
}

// A hub or mirror without the pinned key widens nothing: neither by repositories, nor by
// manifests or chains that the signed statement is not about.
func TestLyingMirror(t *testing.T) {
	image := newImage("app", "a", "b")
	mine := ed25519.NewKeyFromSeed([]byte(strings.Repeat("m", 32)))
	for name, lie := range map[string]func(m *wire.Manifest){
		"one repository more": func(m *wire.Manifest) { m.Image.Repositories = append(m.Image.Repositories, "registry.test/evil") },
		"its own key": func(m *wire.Manifest) {
			m.Image = index.SignImage([]ed25519.PrivateKey{mine}, image.manifest, m.Image.Chain, []string{"registry.test/evil"})
		},
		"another manifest": func(m *wire.Manifest) {
			m.Image = index.SignImage([]ed25519.PrivateKey{key}, digest.FromString("x").String(), m.Image.Chain, []string{"registry.test/evil"})
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
			i, m, h, _ := newTrusting(t, func(context.Context, string) (*wire.Manifest, error) {
				said := image.says(t)
				lie(said)
				return said, nil
			})
			lazy, whys := claims(t, i, image.chains(t), image.labels(repository))
			if slices.Contains(lazy, true) {
				t.Errorf("%s, from %s: claimed %v: %q", name, repository, lazy, whys)
			}
			if len(m.asked) != 1 || len(h.asked) != 0 {
				t.Errorf("%s: asked of manifests %d times, of chains %d", name, len(m.asked), len(h.asked))
			}
		}
	}
}

// Images that have layers in common, and of which one stands on the other, get each their
// own tree, in whatever order they are pulled.
func TestImagesThatShareChains(t *testing.T) {
	base, app := newImage("base", "a", "b"), newImage("app", "a", "b", "c")
	for _, order := range [][]fakeImage{{base, app, base}, {app, base, app}} {
		i, _, h, trees := newTrusting(t, knowing(t, base, app))
		for n, image := range order {
			if n == 2 { // its tree is gone, while what was said of both is remembered
				trees.mu.Lock()
				clear(trees.here)
				trees.mu.Unlock()
			}
			lazy, whys := claims(t, i, image.chains(t), image.labels(image.repositories[0]))
			if slices.Contains(lazy, false) || !trees.Has(image.tree()) {
				t.Errorf("image %d of %q: lazy %v (%q), its tree is here: %v", n, image.repositories, lazy, whys, trees.Has(image.tree()))
			}
		}
		if len(h.asked) != 0 {
			t.Errorf("asked about chains: %v", h.asked)
		}
	}
}

// A hub that does not answer costs a pull one look-up, however long its layers take, and the
// next pull another.
func TestManifestsOfASilentHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		image := newImage("app", "a", "b", "c")
		i, m, _, _ := newTrusting(t, func(context.Context, string) (*wire.Manifest, error) { return nil, errors.New("it is gone") })
		parent := ""
		for _, chain := range image.chains(t) {
			if known, why := i.Claim(t.Context(), chain, parent, image.labels("registry.test/app")); known || !strings.Contains(why, "did not answer: it is gone") {
				t.Errorf("claimed %v: %q", known, why)
			}
			parent = chain
			time.Sleep(40 * time.Second)
		}
		if len(m.asked) != 1 {
			t.Errorf("the hub was asked %d times in a pull", len(m.asked))
		}
		m.answer = knowing(t, image)
		if lazy, whys := claims(t, i, image.chains(t), image.labels("registry.test/app")); slices.Contains(lazy, false) {
			t.Errorf("the hub is back, and the image is not lazy: %q", whys)
		}
	})
}

// Pulls of one image at the same time ask once, and who goes does not wait.
func TestManyPullsOfAManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		image := newImage("app", "a")
		answer := make(chan struct{})
		i, m, _, _ := newTrusting(t, func(ctx context.Context, manifest string) (*wire.Manifest, error) {
			<-answer
			return knowing(t, image)(ctx, manifest)
		})
		gone, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				i.Hold(image.chains(t)[0])
				if known, why := i.Claim(t.Context(), image.chains(t)[0], "", image.labels("registry.test/app")); !known {
					t.Errorf("not lazy: %q", why)
				}
			})
		}
		synctest.Wait()
		cancel()
		if known, why := i.Claim(gone, image.chains(t)[0], "", image.labels("registry.test/app")); known || !strings.Contains(why, "canceled") {
			t.Errorf("a pull that was given up: %v, %q", known, why)
		}
		close(answer)
		group.Wait()
		if len(m.asked) != 1 {
			t.Errorf("asked %d times", len(m.asked))
		}
	})
}
