package many

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/node/fuse"
	"lighter/node/mount"
	"lighter/node/prefetch"
	"lighter/node/record"
	"lighter/node/resolver"
	"lighter/node/trees"
	"lighter/store"
	"lighter/store/disk"
	"lighter/store/origin"
	"lighter/wire/client"
)

// node has the parts of a real node except containerd's socket and the kernel's mounts:
// connections, cache, resolver, indexes and devices.
type node struct {
	plan       Plan
	hubs       *origin.Failover
	cache      *disk.Cache
	units      *store.Fetcher
	prefetcher *prefetch.Prefetcher
	trees      *trees.Store
	chains     *resolver.Resolver
	open       func() error // sets chains to a new resolver, which remembers no failed lookup
}

// lazyTrees implements the resolver's store of trees and mounts.
type lazyTrees struct {
	*trees.Store
	*mount.Mounts
}

func newNode(p Plan, name string, log *slog.Logger) (_ *node, err error) {
	n := &node{plan: p}
	root := filepath.Join(p.Dir, name)
	if err := os.Mkdir(root, 0o700); err != nil {
		return nil, err
	}
	if err := mount.Prepare(root); err != nil {
		return nil, err
	}
	if n.hubs, err = origin.New(log, client.Options{URL: p.Hub, PlainHTTP: true}); err != nil {
		return nil, err
	}
	keys, err := resolver.NewKeys(root, []string{p.Key}, n.hubs)
	if err != nil {
		return nil, err
	}
	if n.cache, err = disk.Open(filepath.Join(root, "cache"), disk.Limits{Size: p.Cache}, log); err != nil {
		return nil, err
	}
	n.units = store.NewFetcher(n.hubs, n.cache)
	n.prefetcher = prefetch.New(func() prefetch.Source { return n.units.Share() }, prefetch.Options{Limit: p.Stream},
		log)
	recorder := record.New(false, func(trace.Trace) {})
	n.trees = trees.Open(root, n.hubs, noKernel{}, n.prefetcher, log)
	lazy := lazyTrees{n.trees, mount.New(root, mount.Auto, n.trees, nil, recorder, log)}
	n.open = func() (err error) {
		n.chains, err = resolver.New(resolver.Config{
			Root: root, Trust: resolver.TrustChain, Answerers: []resolver.Answerer{resolver.NewHub(n.hubs)},
			LastReceived: n.hubs.LastReceived, Trees: lazy, Keys: keys, Log: log,
		})
		return err
	}
	if err := n.open(); err != nil {
		return nil, errors.Join(err, n.cache.Close())
	}
	return n, nil
}

// A node repeats a failed pull, after which a real node would unpack the image: at most maxPulls
// times, with pullPause between two pulls.
const (
	maxPulls  = 60
	pullPause = time.Second
)

// close stops the node. It keeps its directory.
func (n *node) close() error {
	n.trees.Close()
	n.units.Wait()
	return n.cache.Close()
}

// start pulls the image and replays the reads of a start. It appends the duration of each read to
// took.
func (n *node) start(ctx context.Context, t trace.Trace, took []float64) (s Start, _ []float64) {
	begin := time.Now()
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { n.prefetcher.Run(running); close(ended) }()
	defer func() { stop(); <-ended }()
	before := len(took)
	err := n.pull(ctx)
	for ; err != nil && s.Refused < maxPulls && pause(ctx, pullPause); err = n.pull(ctx) {
		if s.Refused++; s.Refused == 1 {
			s.Why = err.Error()
		}
		if again := n.open(); again != nil {
			err = errors.Join(err, again)
			break
		}
	}
	s.Pull = time.Since(begin).Seconds()
	if err == nil {
		took, err = n.read(ctx, t, took, func() { s.Done = time.Since(begin).Seconds() })
	}
	s.Reads = len(took) - before
	if err != nil {
		s.Error = err.Error()
	}
	fetched := n.units.Stats()
	s.Units, s.Retries = fetched.Requests, fetched.Retries
	for _, o := range n.hubs.Health() {
		s.Requests += o.Requests
		s.Bytes += o.Bytes
		s.Failed += o.Failures
	}
	return s, took
}

// pull claims each chain of the image, the lowest first, like a pull of containerd.
func (n *node) pull(ctx context.Context) error {
	parent := ""
	for i, c := range n.plan.Chains {
		n.chains.Hold(c)
		layer := resolver.Request{Chain: c, Parent: parent, MoreAbove: i < len(n.plan.Chains)-1}
		if _, err := n.chains.Claim(ctx, layer); err != nil {
			return fmt.Errorf("chain %s would be unpacked: %w", c, err)
		}
		parent = c
	}
	return nil
}

// read replays the trace and calls done. It stops serving the tree when background fetches have
// ended (settle).
func (n *node) read(ctx context.Context, t trace.Trace, took []float64, done func()) ([]float64, error) {
	unlock := n.trees.Lock(n.plan.Tree)
	defer unlock()
	open, _, err := n.trees.Serve(ctx, n.plan.Tree)
	if err != nil {
		return took, err
	}
	open.Device.Begin()
	took, err = replay(ctx, open.Device, t, took)
	done()
	n.settle(ctx)
	return took, errors.Join(err, n.trees.Unserve(n.plan.Tree))
}

// noKernel replaces the device server, because a replay reads without the kernel.
type noKernel struct{}

func (noKernel) Add(chunk.ID, int64, fuse.Reader) (string, error) { return "", nil }
func (noKernel) Remove(chunk.ID) error                            { return nil }

const (
	// settle checks for fetches every settlePoll. It returns after `settled` successive
	// checks without a fetch, and after settleLongest in any case.
	settlePoll    = 10 * time.Millisecond
	settled       = 5
	settleLongest = time.Minute
)

// settle waits until all fetches have ended. Closing a device earlier would cancel fetches in
// flight, which does not happen while a container runs.
func (n *node) settle(ctx context.Context) {
	last, still := int64(0), 0
	for end := time.Now().Add(settleLongest); still < settled && time.Now().Before(end) &&
		pause(ctx, settlePoll); still++ {
		now := n.units.Stats()
		if now.Requests != last || now.InFlight != (store.GateStats{}) {
			still = 0
		}
		last = now.Requests
	}
}

// anyDevice is larger than any device, in bytes.
const anyDevice = 1 << 60

// trace returns the trace that the nodes replay.
func (p Plan) trace() (trace.Trace, error) {
	if p.Tree.IsZero() || len(p.Chains) == 0 {
		return trace.Trace{}, errors.New("the plan names no image")
	}
	return trace.Decode(p.Trace, p.Tree, anyDevice)
}
