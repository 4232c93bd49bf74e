package containerd

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"lighter/node/resolver"
)

// fakeChains implements Chains, with directories instead of mounted trees. Each Claim and Mount
// begins a transaction of the snapshotter's store. So the test hangs if the caller has a
// transaction open.
type fakeChains struct {
	t   *testing.T
	dir string
	sn  *Snapshotter

	mu        sync.Mutex         // guards the following
	known     map[string]bool    // chains that Claim claims
	fails     map[string]error   // returned by Mount, by chain
	refused   error              // returned by Allow
	forbidden bool               // Claim and Mount must not be called
	onClaim   func()             // called by Claim; nil: nothing
	onMount   func()             // called by Mount; nil: nothing
	claims    []resolver.Request // arguments of Claim
	mounts    []string           // arguments of Mount
	starts    []string           // arguments of NoteStart
	releases  []string           // chains that were held and are not held any more
	ready     map[string]bool    // chains that were claimed or mounted, and are still held
	holds     map[string]int     // number of holds, by chain
}

func newFake(t *testing.T) *fakeChains {
	return &fakeChains{t: t, dir: t.TempDir(), known: map[string]bool{}, fails: map[string]error{},
		ready: map[string]bool{}, holds: map[string]int{}}
}

// enter checks a call of Claim or Mount.
func (f *fakeChains) enter(chain string) {
	if f.sn != nil {
		if err := f.sn.store.WithTransaction(context.Background(), true,
			func(context.Context) error { return nil }); err != nil {
			f.t.Error(err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.forbidden {
		f.t.Errorf("chain %s is claimed or mounted by a call that must not wait for a hub", chain)
	}
	if f.holds[chain] == 0 {
		f.t.Errorf("chain %s is claimed or mounted without being held", chain)
	}
}

func (f *fakeChains) Hold(chain string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds[chain]++
}

func (f *fakeChains) Drop(chain string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds[chain]--
	switch {
	case f.holds[chain] < 0:
		f.t.Errorf("chain %s is dropped more often than held", chain)
	case f.holds[chain] == 0:
		f.releases = append(f.releases, chain)
		f.ready[chain] = false
	}
}

func (f *fakeChains) Claim(_ context.Context, q resolver.Request) (string, error) {
	f.enter(q.Chain)
	if f.onClaim != nil {
		f.onClaim()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claims = append(f.claims, q)
	if !f.known[q.Chain] {
		return "", errUnclaimed
	}
	f.ready[q.Chain] = true
	return "it is known", nil
}

var errUnclaimed = errors.New("it is unknown")

func (f *fakeChains) Allow(context.Context, resolver.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused
}

func (f *fakeChains) Mount(ctx context.Context, chain string) (string, error) {
	f.enter(chain)
	if f.onMount != nil {
		f.onMount()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holds[chain] == 0 {
		f.t.Errorf("chain %s is released while it is being mounted", chain)
	}
	f.mounts = append(f.mounts, chain)
	if err := f.fails[chain]; err != nil {
		return "", err
	}
	f.ready[chain] = true
	return f.tree(chain), os.MkdirAll(f.tree(chain), 0o755)
}

func (f *fakeChains) NoteStart(chain string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.starts = append(f.starts, chain)
}

func (f *fakeChains) tree(chain string) string {
	return filepath.Join(f.dir, strings.TrimPrefix(chain, "sha256:"))
}

func (f *fakeChains) Usage(chain string) (size, inodes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holds[chain] != 1 {
		return 0, 0
	}
	return 4711, 1
}

// forbid makes calls to Claim and Mount fail the test until allow is called.
func (f *fakeChains) forbid() (allow func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forbidden = true
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.forbidden = false
	}
}

// chainID returns the chainID that consists of one repeated digit.
func chainID(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

var discard = slog.New(slog.DiscardHandler)

// open opens the snapshots in dir, until the test ends.
func open(t *testing.T, dir string, chains *fakeChains) *Snapshotter {
	t.Helper()
	sn, err := New(Config{Dir: dir, Log: discard}, chains)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sn.Close() })
	chains.sn = sn
	return sn
}

// newTest opens an empty store. Claim claims the known chains.
func newTest(t *testing.T, known ...string) (*Snapshotter, *fakeChains) {
	t.Helper()
	chains := newFake(t)
	for _, c := range known {
		chains.known[c] = true
	}
	return open(t, filepath.Join(t.TempDir(), "snapshots"), chains), chains
}

// ref returns the option with which containerd names the chain that it unpacks.
func ref(chain string) snapshots.Opt {
	return snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotRef: chain})
}

// unpack unpacks one layer as containerd does, and returns the name of the committed snapshot:
// name, or, if the layer exists already, the name of the snapshot that Walk finds.
func unpack(t *testing.T, sn *Snapshotter, name, parent, chain string, opts ...snapshots.Opt) string {
	t.Helper()
	ctx := t.Context()
	opts = append(opts, ref(chain))
	_, err := sn.Prepare(ctx, "extract "+name, parent, opts...)
	if errdefs.IsAlreadyExists(err) {
		return find(t, sn, chain, parent)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := sn.Commit(ctx, name, "extract "+name, opts...); err != nil {
		t.Fatal(err)
	}
	return name
}

// find returns the name of the snapshot that containerd's metadata store would find for a chain.
func find(t *testing.T, sn *Snapshotter, chain, parent string) (name string) {
	t.Helper()
	filter := `labels."containerd.io/snapshot.ref"==` + chain + `,parent=="` + parent + `"`
	err := sn.Walk(t.Context(), func(_ context.Context, info snapshots.Info) error {
		if name == "" && info.Kind == snapshots.KindCommitted {
			name = info.Name
		}
		return nil
	}, filter)
	if err != nil {
		t.Fatal(err)
	}
	if name == "" {
		t.Fatalf("no snapshot has reference %s and parent %q", chain, parent)
	}
	return name
}

// option returns the value of an option of the only mount, or "".
func option(t *testing.T, mounts []mount.Mount, key string) string {
	t.Helper()
	if len(mounts) != 1 {
		t.Fatalf("got %d mounts, want one: %v", len(mounts), mounts)
	}
	for _, o := range mounts[0].Options {
		if v, ok := strings.CutPrefix(o, key+"="); ok {
			return v
		}
	}
	return ""
}

// must returns a function that returns v, or ends the test if there is an error.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

var errHubGone = errors.New("hub.example: connection refused")
