// Package node promises a node: it puts the parts together (cache, origin,
// devices, trees, chains, snapshotter, control socket), runs them until its
// context ends, and leaves nothing mounted behind.
//
// This file is the drawing; it decides nothing else.
//
// Below the root:
//
//	lock            held while a daemon runs
//	control.sock    for `lighter status` and its like; root's alone
//	cache/          chunks (package disk)
//	trees/ mounts/ devices/    (package mount)
//	chains/ hub.keys           (package chain)
//	snapshots/                 (package snapshot)
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lighter/node/chain"
	"lighter/node/device"
	"lighter/node/mount"
	"lighter/node/snapshot"
	"lighter/store"
	"lighter/store/disk"
	"lighter/store/hub"
)

// Node is a running node.
type Node struct {
	config   Config
	log      *slog.Logger
	started  time.Time
	lock     *os.File
	hub      *hub.Client
	cache    *disk.Cache
	units    *store.Units
	ahead    *device.Ahead
	server   *device.Server
	trees    *mount.Trees
	keys     *chain.Keys
	chains   *chain.Resolver
	snapshot *snapshot.Snapshotter // nil without an address
	binds    binds
	stop     context.CancelFunc
}

// Run runs a node until ctx is done. ready is called once it serves.
func Run(ctx context.Context, config Config, log *slog.Logger, ready func()) error {
	n, err := start(config, log)
	if err != nil {
		return err
	}
	ctx, n.stop = context.WithCancel(ctx)
	defer n.stop()
	group, ctx := errgroup.WithContext(ctx)
	// The devices outlive what uses them: they are served until all is unmounted.
	devices, stopDevices := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- n.server.Serve(devices) }()
	group.Go(func() error { n.ahead.Run(ctx); return nil })
	group.Go(func() error { return n.serveControl(ctx) })
	if n.snapshot != nil {
		group.Go(func() error { return n.serveSnapshots(ctx) })
	}
	log.Info("node is ready", "root", config.Root, "address", config.Address, "hub", n.hub.URL())
	ready()
	err = group.Wait()
	err = errors.Join(err, n.unmountAll())
	stopDevices()
	return errors.Join(err, <-served, n.close())
}

func (n *Node) serveSnapshots(ctx context.Context) error {
	listener, err := snapshot.Listen(ctx, n.config.Address)
	if err != nil {
		return err
	}
	return snapshot.Serve(ctx, listener, n.snapshot)
}

// start opens everything, lowest first.
func start(config Config, log *slog.Logger) (_ *Node, err error) {
	n := &Node{config: config, log: log, started: time.Now(), binds: binds{dirs: map[string]bind{}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if err := n.own(); err != nil {
		return nil, err
	}
	if err := mount.Prepare(config.Root); err != nil {
		return nil, err
	}
	n.hub, err = hub.NewClient(hub.Options{URL: config.Hub, Scope: config.Scope, PlainHTTP: config.PlainHTTP, CAFile: config.CAFile})
	if err != nil {
		return nil, err
	}
	if n.keys, err = chain.NewKeys(config.Root, config.HubKeys, n.hub); err != nil {
		return nil, err
	}
	if n.cache, err = disk.Open(filepath.Join(config.Root, "cache"), int64(config.CacheSize), log); err != nil {
		return nil, err
	}
	n.units = store.NewUnits(n.hub, n.cache)
	n.ahead = device.NewAhead(store.NewTier(n.cache, n.units), log)
	if n.server, err = device.Mount(mount.Devices(config.Root), log); err != nil {
		return nil, err
	}
	n.trees = mount.Open(config.Root, n.hub, n.server, n.ahead, log)
	if n.chains, err = chain.New(config.Root, n.hub, n.trees, n.keys, log); err != nil {
		return nil, err
	}
	if config.Address != "" {
		return n, n.openSnapshots()
	}
	return n, nil
}

// openSnapshots opens the snapshotter, and lets go of the chains that a crash
// left without a snapshot.
func (n *Node) openSnapshots() (err error) {
	n.snapshot, err = snapshot.New(snapshot.Config{Dir: filepath.Join(n.config.Root, "snapshots")}, n.chains)
	if err != nil {
		return err
	}
	referred, _, err := n.snapshot.Restore(context.Background())
	if err != nil {
		return err
	}
	n.chains.Keep(referred)
	return nil
}

// own makes the root and makes sure that no other daemon uses it.
func (n *Node) own() error {
	if os.Geteuid() != 0 {
		return errors.New("a node mounts file systems and must run as root (try: sudo lighter node ...)")
	}
	if err := os.MkdirAll(n.config.Root, 0o700); err != nil {
		return fmt.Errorf("make the node's root: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(n.config.Root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the node's root: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return fmt.Errorf("%s is in use by another lighter node: stop it, or give this one another --root", n.config.Root)
	}
	n.lock = lock
	return nil
}

// unmountAll takes down what is mounted, while devices are still served.
func (n *Node) unmountAll() error {
	return errors.Join(n.unbindAll(), n.trees.Close())
}

// close closes what was opened, highest first.
func (n *Node) close() error {
	var errs []error
	if n.snapshot != nil {
		errs = append(errs, n.snapshot.Close())
	}
	if n.server != nil {
		errs = append(errs, n.server.Close())
	}
	if n.units != nil {
		n.units.Wait()
	}
	if n.cache != nil {
		errs = append(errs, n.cache.Close())
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}
