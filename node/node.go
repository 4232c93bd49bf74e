// Package node puts the parts of a node together, and runs them until its context ends. Then it
// unmounts the trees that no process works in. Running containers keep their mounts. If a daemon
// was killed, the next daemon cleans up.
//
// node.go shows the parts, which are packages below this one, and how they are connected. The other
// files have the configuration (config.go, values.go, trust.go), the root directory (root.go), and
// the recorder of starts (recording.go).
//
// Only the user root may write to the root directory. It contains
//
//	lock            held while a daemon runs (package takeover)
//	control.sock    (package control)
//	keeper.sock     (package keeper)
//	binds.json      (package binds)
//	directory.json  image-store.json    (package directory)
//	configs/        of images in the directory (package imageconfig)
//	blobs blobs.json           (package front/containerd/blobs)
//	cache/          chunks (package disk)
//	trees/          (package trees)
//	mounts/ merged/ devices/ probe/    (package mount)
//	chains/ hub.keys           (package resolver)
//	holder                     (package held)
//	snapshots/      (package front/containerd)
//	build/          the snapshots of BuildKit (package front/containerd)
//	build.sock      (package front/containerd)
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/buildinfo"
	"lighter/durable"
	"lighter/format/guess"
	"lighter/node/binds"
	"lighter/node/completion"
	"lighter/node/control"
	"lighter/node/direct"
	"lighter/node/directory"
	"lighter/node/front/containerd"
	"lighter/node/front/containerd/blobs"
	"lighter/node/front/containerd/differ"
	"lighter/node/health"
	"lighter/node/held"
	"lighter/node/imagecache"
	"lighter/node/imageconfig"
	"lighter/node/imagestore"
	"lighter/node/keeper"
	"lighter/node/layerblob"
	"lighter/node/memory"
	"lighter/node/monitor"
	"lighter/node/mount"
	"lighter/node/ondemand"
	"lighter/node/prefetch"
	"lighter/node/preheat"
	"lighter/node/pullsecrets"
	"lighter/node/record"
	"lighter/node/report"
	"lighter/node/resolver"
	"lighter/node/takeover"
	"lighter/node/trees"
	"lighter/socket"
	"lighter/store"
	"lighter/store/disk"
	"lighter/store/origin"
)

// Node is a running node.
type Node struct {
	config    Config
	started   time.Time
	log       *slog.Logger
	stop      context.CancelCauseFunc
	manager   *keeper.Manager // the service manager; nil: there is none
	lock      *os.File        // the lock of the root
	leftovers *durable.Leftovers
	monitor   *monitor.Server

	hubs        *origin.Failover
	keys        *resolver.Keys
	cache       *disk.Cache
	direct      *direct.Images
	pullSecrets *pullsecrets.Secrets // nil: none are used
	units       *store.Fetcher
	shortage    *memory.Shortage
	prefetcher  *prefetch.Prefetcher
	recorder    *record.Recorder
	traces      *record.Reporter
	held        *held.Reporter

	devices    *takeover.Devices
	health     *health.Check
	trees      *trees.Store
	mounts     *mount.Mounts
	chains     *resolver.Resolver
	binds      *binds.Binds
	configs    *imageconfig.Reader
	layers     *layerblob.Reader
	directory  *directory.Directory
	store      *imagestore.Store // nil: none is configured, or noStore says why there is none
	noStore    error
	storeTrees *directory.Directory // the trees of the store
	completion *completion.Completer

	snapshots *containerd.Snapshotter // nil without an address for containerd
	differ    *differ.Differ          // nil without an address for containerd
	blobs     *blobs.Blobs
	requests  net.Listener        // for containerd; nil without an address
	builds    containerd.BuildKit // zero without an address for containerd
	buildReqs net.Listener        // for BuildKit; nil without an address
	report    *report.Reporter
	images    *imagecache.Cache
	controls  net.Listener

	closers []func() error // each closes a part; in the order in which the parts were opened
}

// Run runs a node until ctx is done. A process runs one node and nothing else. Run calls ready once
// the node's sockets exist.
func Run(ctx context.Context, config Config, log *slog.Logger, ready func()) error {
	memory.LimitGarbage()
	manager := keeper.Environment()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	n := &Node{started: time.Now(), config: config, log: log, stop: stop, manager: manager,
		leftovers: &durable.Leftovers{Log: log}}
	if err := n.start(ctx); err != nil {
		return errors.Join(err, n.close())
	}
	memory.ProtectProcess(log)
	err := n.serve(ctx, ready)
	n.mounts.UnmountIdle()
	return errors.Join(err, n.close())
}

// start opens the parts, lowest first.
func (n *Node) start(ctx context.Context) error {
	inherited, err := n.openRoot()
	if err != nil {
		return err
	}
	var noMonitor error // why the monitor cannot be opened: the node runs without it, too
	if n.monitor, noMonitor = monitor.Open(ctx, n.config.HTTPAddress, n.log); noMonitor != nil {
		n.log.Error("metrics, health and readiness are not available", "address", n.config.HTTPAddress,
			"err", noMonitor)
	}
	n.closers = append(n.closers, func() error { n.monitor.Close(); return nil })
	if err := mount.Prepare(n.config.Root); err != nil {
		return err
	}
	if err := n.openChunks(); err != nil {
		return err
	}
	n.monitor.NotReady("it takes over the mounts of a previous daemon")
	if err := n.openTrees(ctx, inherited); err != nil {
		return err
	}
	if err := n.openSnapshots(ctx); err != nil {
		return err
	}
	if n.binds.Incomplete() || n.directory.Incomplete() || n.storeTrees.Incomplete() {
		// A mount that is not in a list may use any tree.
		n.chains.HoldAll()
	} else {
		n.chains.Sweep()
	}
	n.openReport(noMonitor)
	n.report.LogProblems(ctx, n.log)
	n.monitor.Show(monitor.Node{Healthy: n.health.Healthy, Status: n.report.Status, Devices: n.devices.Stats})
	n.controls, err = n.listen(ctx, control.Socket(n.config.Root))
	return err
}

// openChunks opens the sources of chunks: the cache, and the hubs.
func (n *Node) openChunks() (err error) {
	if n.hubs, err = n.config.origins(n.log); err != nil {
		return err
	}
	n.openDirect()
	if n.keys, err = n.openKeys(); err != nil {
		return err
	}
	n.cache = openCache(n.config, n.log)
	n.units = store.NewFetcher(n.direct.Source(n.hubs), n.cache)
	n.closers = append(n.closers, func() error { n.units.Wait(); return n.cache.Close() })
	n.shortage = memory.NewShortage(n.cache.Short)
	n.prefetcher = prefetch.New(func() prefetch.Source { return n.units.Share() },
		prefetch.Options{Limit: n.config.prefetchLimit(), Blocked: n.shortage.Check, Config: n.direct.Config}, n.log)
	n.openRecorder()
	return nil
}

// openCache opens the cache. Without a cache the node still works, but more slowly: each read that
// the kernel does not answer from memory goes over the network.
func openCache(config Config, log *slog.Logger) *disk.Cache {
	limits := disk.Limits{Size: int64(config.CacheSize), Low: disk.Space(config.FreeLow),
		High: disk.Space(config.FreeHigh)}
	dir := filepath.Join(config.Root, "cache")
	cache, err := disk.Open(dir, limits, log)
	if err != nil {
		log.Error("the node runs without a cache; it tries again every minute", "err", err)
		return disk.Absent(err, dir, limits, log)
	}
	return cache
}

// lazyTrees combines the store of trees and their mounts for the resolver.
type lazyTrees struct {
	*trees.Store
	*mount.Mounts
}

var _ resolver.Trees = lazyTrees{}

// openTrees takes over the devices of a previous daemon, or makes new ones, and opens the trees.
func (n *Node) openTrees(ctx context.Context, inherited bool) (err error) {
	root := n.config.Root
	n.devices, err = takeover.Open(ctx,
		takeover.Options{Root: root, Manager: n.manager, Inherited: inherited, Log: n.log})
	if err != nil {
		return err
	}
	n.health = health.New(root, n.devices)
	n.trees = trees.Open(root, n.direct.Source(n.hubs), n.devices.Server(), n.prefetcher, n.log)
	n.closers = append(n.closers, func() error {
		n.health.Stop()
		defer n.trees.Close() // only when no device is served any more
		return n.devices.Close()
	})
	n.mounts = mount.New(root, n.config.MountMode, n.trees, n.devices.Server(), n.recorder, n.log)
	n.held = held.New(root, time.Duration(n.config.HeldDelay), n.hubTrees, n.hubs, n.log)
	if err := n.trees.UseRoom(n.cache); err != nil {
		return err
	}
	if err := n.mounts.Recover(n.devices.TakenOver()); err != nil {
		return err
	}
	if !n.config.LocalDevice {
		n.trees.DropLocals()
	}
	n.devices.Start(ctx, n.stop)
	n.mounts.Probe()
	n.chains, err = resolver.New(resolver.Config{
		Root: root, Trust: n.config.trust(n.hubs).Trust, Answerers: n.answerers(),
		LastReceived: n.hubs.LastReceived, Trees: lazyTrees{n.trees, n.mounts}, Keys: n.keys,
		Refused: n.direct.Refused, Log: n.log,
	})
	if err != nil {
		return err
	}
	n.layers = &layerblob.Reader{Statements: n.chains, Hub: n.hubs, Log: n.log}
	n.blobs, err = blobs.New(blobs.Config{
		Root: root, Socket: n.config.Containerd, Namespaces: n.config.Blobs, Layers: n.layers,
		Leftovers: n.leftovers, Log: n.log,
	})
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.blobs.Close)
	n.binds = binds.Open(root, n.hubs, n.chains, n.leftovers, n.log)
	n.configs = &imageconfig.Reader{Statements: n.chains, Registry: n.hubs}
	if err := n.openDirectories(root); err != nil {
		return err
	}
	schedule, err := completion.ParseSchedule(n.config.CompleteSchedule)
	if err != nil {
		return err
	}
	n.completion = completion.New(completion.Options{
		Complete: n.config.Complete, Local: n.config.LocalDevice, Rate: int64(n.config.CompleteRate),
		Schedule: schedule, Short: n.shortage.Check,
	}, completion.Parts{
		Trees: n.trees, Mounts: n.mounts, Cache: n.cache, Share: func() completion.Share { return n.units.Share() },
	}, n.log)
	return nil
}

// openSnapshots opens the snapshotters, the differ and their sockets, if an address is configured.
func (n *Node) openSnapshots(ctx context.Context) (err error) {
	if n.config.Address == "" {
		return nil
	}
	dir := filepath.Join(n.config.Root, "snapshots")
	n.snapshots, err = containerd.New(containerd.Config{
		Dir: dir, RemapIDs: n.config.RemapIDs, Beside: filepath.Join(n.config.Root, "mounts", "snapshots"),
		NoteLazy: n.blobs.NoteLazy, NoteMounts: n.openPrograms(), Log: n.log,
	}, n.chains)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.snapshots.Close)
	n.differ, err = differ.New(differ.Config{Snapshots: dir, Socket: n.config.Containerd, Log: n.log})
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.differ.Close)
	if err := os.MkdirAll(filepath.Dir(n.config.Address), 0o700); err != nil {
		return fmt.Errorf("make the directory of containerd's socket: %w", err)
	}
	if n.requests, err = n.listen(ctx, n.config.Address); err != nil {
		return err
	}
	n.builds, err = containerd.NewBuildKit(containerd.Config{
		Dir: filepath.Join(n.config.Root, "build"), Log: n.log,
	}, n.chains)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.builds.Close)
	n.buildReqs, err = n.listen(ctx, containerd.BuildKitSocket(n.config.Root))
	return err
}

// openPrograms returns what looks up the programs of containers before they run, if their starts
// are guessed. It returns nil if the node has no containerd.
func (n *Node) openPrograms() func(key, chain string) {
	if n.config.Containerd == "" {
		return nil
	}
	programs, err := containerd.OpenPrograms(n.config.Containerd, n.log)
	if err != nil {
		n.log.Warn("starts of images without startup packs are guessed when their programs run", "err", err)
		return nil
	}
	n.closers = append(n.closers, programs.Close)
	return func(key, chain string) {
		if tree := n.chains.Tree(chain); n.direct.Has(tree) {
			programs.Find(key, func(ctx context.Context, program guess.Config) {
				n.mounts.NoteProgram(ctx, tree, program)
			})
		}
	}
}

// snapshotters returns the opened snapshotters.
func (n *Node) snapshotters() containerd.Snapshotters {
	if n.snapshots == nil {
		return nil
	}
	return containerd.Snapshotters{n.snapshots, n.builds.Snapshotter}
}

func (n *Node) listen(ctx context.Context, path string) (net.Listener, error) {
	listener, err := socket.Listen(ctx, path)
	if err == nil {
		n.closers = append(n.closers, func() error {
			_ = listener.Close() // the listener's server may have closed it
			return nil
		})
	}
	return listener, err
}

// openReport opens the parts that administrators use.
func (n *Node) openReport(noMonitor error) {
	c := &n.config
	fixed := report.Status{
		Version: buildinfo.Release(), Root: c.Root, Address: c.Address, MountMode: c.MountMode, RemapIDs: c.RemapIDs,
		Trust: c.trust(n.hubs), Domain: c.Domain, CAFile: c.CAFile, Started: n.started,
	}
	if noMonitor != nil {
		fixed.NoMetrics = noMonitor.Error()
	}
	if n.noStore != nil {
		fixed.ImageStore = &report.ImageStore{Status: imagestore.Status{Dir: c.ImageStore, Failed: n.noStore.Error()}}
	}
	n.report = &report.Reporter{
		Fixed: fixed, Hubs: n.hubs, Keys: n.keys, Chains: n.chains, Trees: n.trees, Mounts: n.mounts,
		Snapshots: n.snapshotters(), Cache: n.cache, Units: n.units, Ahead: n.prefetcher, Recorder: n.recorder,
		Traces: n.traces, Held: n.held, Direct: n.direct,
		Devices: n.devices, Binds: n.binds, Directory: n.directory, ImageStore: n.store, StoreTrees: n.storeTrees,
		Blobs:      n.blobs,
		Completion: n.completion, Leftovers: n.leftovers,
	}
	n.images = imagecache.New(n.cache, n.trees, n.report, n.completion, n.log)
}

// serve does the node's background work, and answers containerd and administrators, until ctx is
// done.
func (n *Node) serve(ctx context.Context, ready func()) error {
	n.binds.Recover(ctx, n.devices.TakenOver())
	n.directory.Show()
	n.storeTrees.Show()
	n.blobs.Show()
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context){
		n.prefetcher.Run, n.recorder.Run, n.traces.Run, n.held.Run, n.directory.Run, n.storeTrees.Run, n.blobs.Run,
		n.chains.RenewStatements, n.trees.RenewLocations, n.completion.Run, n.devices.WatchKeeper,
		n.verifyDirect,
		func(ctx context.Context) { n.images.Run(ctx, int64(n.config.ScrubRate)) },
		func(ctx context.Context) { n.direct.Run(ctx, n.trees.List) },
		func(ctx context.Context) { n.direct.StoreSeen(ctx, n.cache.Put) },
		func(ctx context.Context) { n.health.FeedWatchdog(ctx, n.manager, n.log) },
		func(ctx context.Context) { n.health.Flush(ctx, n.log) },
	} {
		group.Go(func() error { run(ctx); return nil })
	}
	if n.pullSecrets != nil {
		group.Go(func() error { n.pullSecrets.Run(ctx); return nil })
	}
	if n.store != nil {
		group.Go(func() error { n.store.Run(ctx); return nil })
	}
	recorder := &ondemand.Recorder{Starts: n.recorder, Images: n.report, Mounts: n.mounts, Files: n.trees}
	if len(n.config.Hubs) > 0 {
		recorder.Send = n.sendTrace
	}
	server := control.Server{
		Reporter: n.report, Cache: n.images, Binds: n.binds, Stop: func() { n.stop(nil) },
		Preheater: &preheat.Preheater{Hub: n.hubs, Chains: n.chains, Trees: n.trees, Fetcher: n.completion},
		Starter:   &binds.Starter{Binds: n.binds, Configs: n.configs},
		Recorder:  recorder,
	}
	group.Go(func() error { return server.Serve(ctx, n.controls) })
	if n.snapshots != nil {
		group.Go(func() error { return containerd.Serve(ctx, n.requests, n.snapshots, n.differ) })
		group.Go(func() error {
			return containerd.Serve(ctx, containerd.OneClient(n.buildReqs, n.log), n.builds, nil)
		})
	}
	n.announce(ready)
	group.Go(func() error { <-ctx.Done(); n.withdraw(); return nil })
	return group.Wait()
}

// announce reports that the node is ready: its sockets exist, and it serves the trees of a previous
// daemon. No other function reports that a node is ready.
func (n *Node) announce(ready func()) {
	n.log.Info("node is ready", "root", n.config.Root, "address", n.config.Address, "hubs", n.hubs.URL(),
		"release", buildinfo.Release())
	n.monitor.Ready()
	n.notify(fmt.Sprintf("READY=1\nSTATUS=%d trees served, root %s", len(n.mounts.Mounted()), n.config.Root))
	ready()
}

// withdraw reports that the node stops.
func (n *Node) withdraw() {
	n.health.Stop()
	n.monitor.NotReady("it stops")
	n.notify("STOPPING=1\nSTATUS=stopping")
}

func (n *Node) notify(lines string) {
	if err := n.manager.Notify(lines); err != nil {
		n.log.Warn("cannot notify the service manager", "err", err)
	}
}

// close closes the opened parts, the last one first. It does not release the lock of the root: the
// end of the process does. So when another process gets the lock, no part of this node is running.
func (n *Node) close() error {
	var errs []error
	for _, closer := range slices.Backward(n.closers) {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}
