package direct

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/guess"
	"lighter/registries"
	"lighter/sleep"
	"lighter/store/repository"
	"lighter/wire/pattern"
)

const (
	// makeTimeout bounds the time in which an image's tables are fetched and its tree is made.
	// Pulls wait that long for all sources.
	makeTimeout = 20 * time.Second
	// sweepEvery is how often trees that the node no longer has are removed.
	sweepEvery = 10 * time.Minute
	// maxRepositories bounds the repositories that are kept open.
	maxRepositories = 1024
	// maxDamaged bounds the damaged tables that are remembered.
	maxDamaged = 1024
)

// Config says what Images need. All fields are required, except Tables, Verified, Keys, Chains and
// Pulled.
type Config struct {
	Root string // the node's
	// Tables are patterns (package pattern) of the repositories whose tables of contents are
	// believed: HOST[:PORT]/PATH.
	Tables []string
	// Verified are patterns of further repositories. Their images are answered once this node has
	// read their layers, and found in them what their tables say.
	Verified []string
	// Keys are the public keys whose attached indexes are believed, in any repository. Chains are
	// repositories, HOST[:PORT]/PATH, in which such indexes have a tag for their chain.
	Keys       []ed25519.PublicKey
	Chains     []string
	Registries *registries.Registries
	// Pulled reads a manifest or config, of limit bytes at most and verified, that a pull in a
	// namespace of containerd has fetched already. It saves two requests. It may be nil.
	Pulled    func(ctx context.Context, namespace string, d digest.Digest, limit int64) ([]byte, error)
	Leftovers *durable.Leftovers
	Log       *slog.Logger
}

// Images are the images that this node starts without a hub. It is safe for concurrent use.
type Images struct {
	config   Config
	key      ed25519.PrivateKey
	kept     *kept
	verdicts *verdicts
	waiting  waiting

	repositories *lru.Cache[string, *repository.Repository]
	damaged      *lru.Cache[namedTable, error] // tables that are wrong in their layers
	turns        *turns
	makeTime     time.Duration       // makeTimeout; shorter in tests
	surveying    *semaphore.Weighted // of images whose lower layers are read as a whole
	batches      chan batch          // for StoreSeen
	flights      singleflight.Group  // by manifest and repository
}

// Open opens what earlier daemons have kept. The caller calls Close.
func Open(c Config) (*Images, error) {
	dir := filepath.Join(c.Root, "direct")
	k, err := openKept(dir, c.Leftovers)
	if err != nil {
		return nil, err
	}
	m := &Images{config: c, kept: k, verdicts: openVerdicts(dir, c.Leftovers),
		surveying: semaphore.NewWeighted(1), batches: make(chan batch, maxBatches), makeTime: makeTimeout}
	if m.key, err = keyAt(filepath.Join(dir, "key")); err != nil {
		k.close()
		return nil, err
	}
	if m.repositories, err = lru.New[string, *repository.Repository](maxRepositories); err == nil {
		m.damaged, err = lru.New[namedTable, error](maxDamaged)
	}
	if err == nil {
		m.turns, err = newTurns()
	}
	return m, err
}

// Closed returns images that cannot be opened: none is answered, and none is served.
func Closed(c Config) *Images {
	k := &kept{left: c.Leftovers, trees: map[chunk.ID]*keptTree{}, packs: map[chunk.ID][]*keptLayer{}}
	return &Images{config: Config{Log: c.Log}, kept: k, verdicts: &verdicts{}}
}

// keyAt reads the seed of the node's own key, or makes one.
func keyAt(path string) (ed25519.PrivateKey, error) {
	seed, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		seed = make([]byte, ed25519.SeedSize)
		_, _ = rand.Read(seed) // it never fails
		err = durable.Replace(path, seed)
	}
	if err == nil && len(seed) != ed25519.SeedSize {
		err = fmt.Errorf("%s has %d bytes, want %d: remove it, and the node makes a new one", path, len(seed),
			ed25519.SeedSize)
	}
	if err != nil {
		return nil, fmt.Errorf("read the key of this node: %w", err)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// Key returns the public key with which this node signs the statements about trees that it makes.
// It is nil if the images are Closed.
func (m *Images) Key() ed25519.PublicKey {
	if m.key == nil {
		return nil
	}
	return m.key.Public().(ed25519.PublicKey)
}

// Close closes the files.
func (m *Images) Close() error {
	m.kept.close()
	return nil
}

// Run removes trees that were made here and that the node does not have, until ctx ends. list lists
// the trees that it has.
func (m *Images) Run(ctx context.Context, list func() ([]chunk.ID, error)) {
	for sleep.For(ctx, sweepEvery) {
		if trees, err := list(); err == nil {
			m.kept.sweep(trees)
		}
	}
}

// Has reports whether a tree was made here.
func (m *Images) Has(tree chunk.ID) bool { return m.kept.has(tree) }

// Config returns how the image of a tree that was made here starts. It returns false for other
// trees, and until the image is pulled again if an earlier version has made its tree.
func (m *Images) Config(tree chunk.ID) (guess.Config, bool) {
	m.kept.mu.Lock()
	defer m.kept.mu.Unlock()
	if t := m.kept.trees[tree]; t != nil && t.Config != nil {
		return *t.Config, true
	}
	return guess.Config{}, false
}

// believes is format.counts of tables.
func (m *Images) believes(repository string) error {
	if m.trusts(repository) || matches(m.config.Verified, repository) {
		return nil
	}
	return fmt.Errorf("%s is not one of the repositories whose tables count (direct)", repository)
}

// trusts reports whether the tables of a repository are believed before they were verified.
func (m *Images) trusts(repository string) bool { return matches(m.config.Tables, repository) }

func matches(patterns []string, repository string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return pattern.Match(p, repository) })
}

// open opens a repository, with the login that the node has for it.
func (m *Images) open(name string) (*repository.Repository, error) {
	if r, ok := m.repositories.Get(name); ok {
		return r, nil
	}
	r, err := repository.Open(m.config.Registries, name, registries.Access{Own: true})
	if err == nil {
		m.repositories.Add(name, r)
	}
	return r, err
}
