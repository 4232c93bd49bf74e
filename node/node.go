// Package node promises a node: it puts the parts together (cache, origin,
// devices, trees, chains, snapshotter, control socket), runs them until its
// context ends, and leaves nothing mounted behind but what containers still use.
// What a daemon that was killed left, the next one puts in order.
//
// node.go is the drawing; it decides nothing else. The other files are for
// people: a tree mounted without containerd (bind.go; mounts.go, without a node
// too), what is kept in the cache (cache.go), what is fetched of images that are in
// use although nobody reads it (complete.go), and the control socket, with both its
// ends.
//
// Below the root, which is root's alone to write:
//
//	lock            held while a daemon runs; its process ID and PID namespace
//	control.sock    for `lighter status` and its like; root's alone
//	keeper.sock     (package keeper)
//	binds.json      what is mounted for people; with .broken behind it, one that could not be read
//	cache/          chunks (package disk)
//	trees/                     (package trees)
//	mounts/ devices/ probe/    (package mount)
//	chains/ hub.keys           (package resolver)
//	snapshots/                 (package front/containerd)
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lighter/durable"
	"lighter/node/front/containerd"
	"lighter/node/health"
	"lighter/node/keeper"
	"lighter/node/mount"
	"lighter/node/prefetch"
	"lighter/node/record"
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
	config     Config
	log        *slog.Logger
	started    time.Time
	lock       *os.File
	devices    *takeover.Devices
	health     *health.Check
	hubs       *origin.Failover
	cache      *disk.Cache
	units      *store.Units
	prefetcher *prefetch.Prefetcher
	recorder   *record.Recorder
	reporter   *record.Reporter
	shortage   shortage
	manager    *keeper.Manager // the service manager, or nil
	trees      *trees.Store
	mounts     *mount.Mounts
	keys       *resolver.Keys
	chains     *resolver.Resolver
	snapshot   *containerd.Snapshotter // nil without an address
	binds      *binds
	leftovers  durable.Leftovers // of small files of the node's own
	web        *web              // nil without an HTTP address
	noMetrics  error             // why there is none although there is an address
	controls   net.Listener
	requests   net.Listener // containerd's; nil without an address
	stop       context.CancelCauseFunc

	completion *completion
}

// Run runs a node until ctx is done, as the one thing that this process does.
// ready is called once its sockets are there.
func Run(ctx context.Context, config Config, log *slog.Logger, ready func()) error {
	boundGarbage()
	manager := keeper.Environment()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	n, err := start(ctx, stop, config, manager, log)
	if err != nil {
		return err
	}
	n.last()
	err = n.serve(ctx, ready)
	n.mounts.UnmountIdle()
	return errors.Join(err, n.close())
}

// serve answers containerd and people until ctx is done.
func (n *Node) serve(ctx context.Context, ready func()) error {
	n.recoverBinds(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { n.prefetcher.Run(ctx); return nil })
	group.Go(func() error { n.recorder.Run(ctx); return nil })
	group.Go(func() error { n.reporter.Run(ctx); return nil })
	group.Go(func() error { n.scrub(ctx); return nil })
	group.Go(func() error { n.chains.RenewStatements(ctx); return nil })
	group.Go(func() error { n.complete(ctx); return nil })
	group.Go(func() error { n.devices.WatchKeeper(ctx); return nil })
	group.Go(func() error { return n.serveControl(ctx) })
	if n.snapshot != nil {
		group.Go(func() error { return containerd.Serve(ctx, n.requests, n.snapshot) })
	}
	group.Go(func() error { n.health.FeedWatchdog(ctx, n.manager, n.log); return nil })
	n.announce(ready)
	group.Go(func() error { <-ctx.Done(); n.withdraw(); return nil })
	return group.Wait()
}

// lazyTrees is the store of trees with their mounts, as the resolver sees it.
type lazyTrees struct {
	*trees.Store
	*mount.Mounts
}

var _ resolver.Trees = lazyTrees{}

// start opens everything, lowest first.
func start(ctx context.Context, stop context.CancelCauseFunc, config Config, manager *keeper.Manager, log *slog.Logger) (_ *Node, err error) {
	n := &Node{config: config, log: log, started: time.Now(), manager: manager, stop: stop, leftovers: durable.Leftovers{Log: log}}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	inherited, err := n.own()
	if err != nil {
		return nil, err
	}
	config = n.config
	if n.web, n.noMetrics = openWeb(ctx, config.HTTPAddress, log); n.noMetrics != nil { // containers come first
		log.Error("nobody can ask for metrics, health or readiness", "address", config.HTTPAddress, "cause", n.noMetrics)
	}
	if err := mount.Prepare(config.Root); err != nil {
		return nil, err
	}
	n.binds = openBinds(config.Root, &n.leftovers)
	if n.hubs, err = config.origins(log); err != nil {
		return nil, err
	}
	if n.keys, err = resolver.NewKeys(config.Root, config.HubKeys, n.hubs); err != nil {
		return nil, err
	}
	n.cache = openCache(config, log)
	n.units = store.NewUnits(n.hubs, n.cache)
	n.completion = newCompletion(config)
	n.prefetcher = prefetch.New(func() prefetch.Source { return n.units.Share() }, prefetch.Options{Limit: config.prefetchLimit(), Short: n.short}, log)
	n.newRecorder()
	n.web.notReady("it takes over what a former daemon has mounted")
	n.devices, err = takeover.Open(ctx, takeover.Options{Root: config.Root, Manager: manager, Inherited: inherited, Resend: config.Resend, Log: log})
	if err != nil {
		return nil, err
	}
	n.health = health.New(config.Root, n.devices)
	n.trees = trees.Open(config.Root, n.hubs, n.devices.Server(), n.prefetcher, log)
	n.mounts = mount.New(config.Root, config.MountMode, n.trees, n.devices.Server(), n.recorder, log)
	if err := n.trees.UseRoom(n.cache); err != nil {
		return nil, err
	}
	if err := n.mounts.Recover(n.devices.TakenOver()); err != nil {
		return nil, err
	}
	if !config.LocalDevice {
		n.trees.DropLocals()
	}
	n.devices.Start(ctx, stop)
	n.mounts.Probe()
	if n.chains, err = n.newResolver(); err != nil {
		return nil, err
	}
	n.holdBinds()
	if err := n.openSnapshots(ctx); err != nil {
		return nil, err
	}
	if n.binds.unknown { // any tree may be mounted for people
		n.chains.HoldAll()
	} else {
		n.chains.Sweep()
	}
	n.reportLost(ctx)
	n.reportRefused(ctx)
	if n.controls, err = socket.Listen(ctx, ControlSocket(config.Root)); err != nil {
		return nil, err
	}
	n.web.show(n)
	return n, nil
}

// openSnapshots opens the snapshotter and its socket, if there is to be one.
func (n *Node) openSnapshots(ctx context.Context) (err error) {
	if n.config.Address == "" {
		return nil
	}
	config := containerd.Config{Dir: filepath.Join(n.config.Root, "snapshots"), RemapIDs: n.config.RemapIDs,
		Beside: filepath.Join(n.config.Root, "mounts", "snapshots"), Log: n.log}
	n.snapshot, err = containerd.New(config, n.chains)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(n.config.Address), 0o700); err != nil {
		return fmt.Errorf("make the directory of containerd's socket: %w", err)
	}
	n.requests, err = socket.Listen(ctx, n.config.Address)
	return err
}

// own makes the root and makes sure that no other daemon uses it.
func (n *Node) own() (inherited bool, err error) {
	if os.Geteuid() != 0 {
		return false, errors.New("a node mounts file systems and must run as root (try: sudo lighter node ...)")
	}
	err = n.checkProgram()
	if err == nil {
		err = n.makeRoot()
	}
	if err == nil {
		n.lock, inherited, err = takeover.Lock(n.config.Root, &n.leftovers)
	}
	if errors.Is(err, unix.EROFS) {
		err = fmt.Errorf("the node's root %s is on a file system that is read-only, and a node keeps its lock, its sockets and its state there: make it writable (the kernel's log says why it is not), or choose another --root: %w", n.config.Root, err)
	}
	return inherited, err
}

// checkProgram refuses to run a program that a node serves: it would have to read its own
// text to answer who reads it, and the one before it could not be replaced. If the mounts
// cannot be read, the node goes on: what needs them next says what that means for containers.
func (n *Node) checkProgram() error {
	tree, err := mount.LazyMount("/proc/self/exe")
	if err != nil {
		n.log.Warn("cannot tell whether this program lies on a lazy image", "err", err)
		return nil
	}
	if tree != "" {
		return fmt.Errorf("this program lies on an image that a lighter node serves (%s), and would wait for itself to read it: "+
			"install it on the machine's own disk, or pull its image with another snapshotter", tree)
	}
	return nil
}

// makeRoot makes sure of the root: a directory in which only root can change
// what is believed, under its one name.
func (n *Node) makeRoot() error {
	root := n.config.Root
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("make the node's root: %w", err)
	}
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return fmt.Errorf("make the node's root: %w", err)
	}
	if err := checkRootPath(real); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Stat(real, &stat); err != nil {
		return fmt.Errorf("look at the node's root %s: %w", root, err)
	}
	if stat.Uid != 0 || stat.Mode&0o022 != 0 {
		return fmt.Errorf("others than root can write to %s: `chown root %s; chmod 700 %s`, or give the node another --root", root, root, root)
	}
	n.config.Root = real
	return nil
}

// close closes what was opened, highest first.
func (n *Node) close() error {
	var errs []error
	for _, listener := range []net.Listener{n.controls, n.requests} {
		if listener != nil {
			_ = listener.Close() // whoever served has closed it
		}
	}
	if n.snapshot != nil {
		errs = append(errs, n.snapshot.Close())
	}
	if n.devices != nil {
		n.health.Stop()
		errs = append(errs, n.devices.Close())
	}
	if n.trees != nil {
		n.trees.Close()
	}
	if n.units != nil {
		n.units.Wait()
	}
	if n.cache != nil {
		errs = append(errs, n.cache.Close())
	}
	n.web.close()
	return errors.Join(errs...) // the lock goes with the process: who waits for it finds nothing running
}
