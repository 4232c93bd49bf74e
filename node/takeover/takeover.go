// Package takeover passes the connection to the kernel, through which containers read their
// images, from one daemon to the next. A daemon takes over the connection that a keeper holds
// (package keeper), or makes a new one. While it runs, it makes sure that a keeper holds a copy.
// When it ends, it unmounts the devices if nothing uses them.
//
// It gives up a connection that containers use only if no daemon could ever serve it. If the
// take-over fails for a temporary reason (no descriptors, no memory, no answer from the keeper),
// Open fails and leaves everything to the next daemon.
//
// The package also has the lock of a node's root (Lock). It can be taken from a daemon that was
// killed and hangs in the kernel.
package takeover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"lighter/node/fuse"
	"lighter/node/keeper"
	"lighter/node/mount"
)

// note is the text that a keeper holds beside the connection. It is for the next daemon, which may
// be older or newer than this one.
type note struct {
	Version int        `json:"version"` // version of the note that its writer writes
	Oldest  int        `json:"oldest"`  // oldest version whose daemons can read it
	Mount   string     `json:"mount"`   // number of the FUSE file system (mount.Connection)
	State   fuse.State `json:"state"`
}

// keptVersion is the version of the notes that this daemon writes. The daemon reads every note
// whose Oldest is not above keptVersion. keptOldest is the Oldest of this daemon's notes without a
// journal. Both are variables and texts, so that tests can link a daemon of a later version
// (-ldflags -X).
var (
	keptVersion = "2"
	keptOldest  = "1"
)

// journalVersion is the oldest version whose daemons can read a journal, and the Oldest of notes
// with a journal.
const journalVersion = 2

// StateVersion returns the version of the state that this program's daemons leave to the next one.
func StateVersion() int { return number(keptVersion) }

// number parses a version, which the linker may have set. It returns 0 if the text is not a number.
func number(version string) int {
	n, _ := strconv.Atoi(version)
	return n
}

var (
	// errTooNew says that this daemon is too old for a previous daemon's devices. This daemon then
	// ends and changes nothing.
	errTooNew = errors.New("a previous daemon's devices are too new for this one")
	// errNothingKept says that no keeper holds a previous daemon's devices.
	errNothingKept = errors.New("no previous daemon's devices are kept")
	// errUnusable says that no daemon will ever be able to serve the kept devices.
	errUnusable = errors.New("what is kept of a previous daemon's devices cannot be used")
)

// Options say which devices are opened.
type Options struct {
	Root    string
	Manager *keeper.Manager // the service manager; nil: there is none
	// Inherited is the result of Lock. If it is true, a dead daemon still holds its connection.
	Inherited bool
	Log       *slog.Logger
}

// Devices is the connection to the kernel that serves a node's devices, with the keepers that
// hold a copy of it.
type Devices struct {
	root      string
	log       *slog.Logger
	keepers   []keeper.Keeper // keepers[0] is used; the others may hold a previous daemon's connection
	server    *fuse.Server
	takenOver bool

	closing     atomic.Bool
	unserved    atomic.Bool
	stopServing context.CancelFunc
	served      chan error // the result of serving; nil before Start

	keeping keeping
}

// Open takes over the connection that a keeper holds, or makes a new one. If a kept connection
// cannot be taken over now, but perhaps later, Open fails and leaves everything as it is.
func Open(ctx context.Context, o Options) (*Devices, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	process := keeper.Process{Root: o.Root, Command: []string{program, "keeper", o.Root}}
	d := &Devices{root: o.Root, log: o.Log, keepers: []keeper.Keeper{process}}
	if o.Manager.Stores() {
		d.keepers = slices.Insert(d.keepers, 0, keeper.Keeper(o.Manager))
	}
	d.server, err = d.takeOver(ctx)
	switch {
	case err == nil:
		d.takenOver = true
		d.log.Info("a previous daemon's devices are taken over")
		d.keepAgain(ctx) // gives the keeper this daemon's note
		return d, nil
	case errors.Is(err, errNothingKept):
	case errors.Is(err, errTooNew):
		return nil, err
	case !errors.Is(err, errUnusable):
		return nil, fmt.Errorf("take over a previous daemon's devices: %w: they stay kept, and containers that "+
			"read from them wait: start the node again, or, to give up these reads, "+
			"run `lighter release --root %s` first", err, o.Root)
	default:
		d.log.Error("cannot take over a previous daemon's devices: containers get errors for data not in memory",
			"err", err)
		// While a keeper holds the connection, the connection does not end, and readers wait.
		if err := d.drop(ctx); err != nil {
			return nil, err
		}
	}
	if err := d.mount(ctx, o); err != nil {
		return nil, err
	}
	return d, nil
}

// mount makes a new connection.
func (d *Devices) mount(ctx context.Context, o Options) (err error) {
	if o.Inherited {
		// The dead daemon holds its connection as long as it hangs, and it hangs in a read through
		// this connection. Only the release of the mounts ends that read.
		if err := mount.Release(d.root); err != nil {
			return err
		}
	}
	if d.server, err = fuse.Mount(mount.Devices(d.root), d.log); err != nil {
		return fmt.Errorf("%w (if no node serves %s any more, `lighter release --root %[2]s` removes what a previous "+
			"node left mounted there)", err, d.root)
	}
	d.keepAgain(ctx)
	return nil
}

// drop makes all keepers close the connection.
func (d *Devices) drop(ctx context.Context) error {
	var errs []error
	for _, k := range d.keepers {
		errs = append(errs, k.Drop(ctx))
	}
	return errors.Join(errs...)
}

// takeKept asks one keeper after the other for the connection. It returns the answer of the first
// keeper that holds a connection or fails. If no keeper holds one, the error wraps errNothingKept.
func (d *Devices) takeKept(ctx context.Context) (files []*os.File, note []byte, err error) {
	for _, k := range d.keepers {
		files, note, err = k.Take(ctx)
		if !errors.Is(err, fs.ErrNotExist) {
			return files, note, err
		}
	}
	return nil, nil, fmt.Errorf("%w: %v", errNothingKept, err)
}

// takeOver adopts the kept connection. Its error wraps errNothingKept, errTooNew or errUnusable.
// With any other error, a later attempt may succeed.
func (d *Devices) takeOver(ctx context.Context) (*fuse.Server, error) {
	files, text, err := d.takeKept(ctx)
	if err != nil {
		return nil, err
	}
	defer closeFiles(files)
	var kept note
	err = json.Unmarshal(text, &kept) // of a newer daemon's note, perhaps only the versions can be read
	if known := number(keptVersion); kept.Oldest > known {
		return nil, fmt.Errorf("%w: their state has version %d, which daemons of version %d or newer can read, "+
			"and this daemon has version %d: start a newer lighter node, or run `lighter release --root %s` first; "+
			"then all reads of running containers from their images fail",
			errTooNew, kept.Version, kept.Oldest, known, d.root)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: read its note: %w", errUnusable, err)
	}
	now, err := mount.Connection(d.root)
	if err != nil {
		return nil, err
	}
	if now != kept.Mount {
		return nil, fmt.Errorf("%w: it belongs to mount %s, and %s is mount %q", errUnusable, kept.Mount,
			mount.Devices(d.root), now)
	}
	server, err := fuse.Adopt(files, mount.Devices(d.root), kept.State, d.log)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", errUnusable, err)
	}
	return server, err
}

func closeFiles(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}

// Server returns the server of the devices.
func (d *Devices) Server() *fuse.Server { return d.server }

// Stats returns the state of the kernel's requests.
func (d *Devices) Stats() fuse.ServerStats { return d.server.Stats() }

// TakenOver reports whether the connection is a previous daemon's.
func (d *Devices) TakenOver() bool { return d.takenOver }

// Unserved reports that the kernel's requests are no longer answered, though Close was not called.
func (d *Devices) Unserved() bool { return d.unserved.Load() }

// Start serves the devices until Close is called, even if ctx is done before. It must be called
// before a tree is unmounted, because unmounting a tree may wait for the tree's reads. When serving
// ends, stop is called with the error or nil. If serving ends early, because another program has
// unmounted the devices, the node cannot mount anything any more.
func (d *Devices) Start(ctx context.Context, stop func(error)) {
	ctx, d.stopServing = context.WithCancel(context.WithoutCancel(ctx))
	d.served = make(chan error, 1)
	go func() {
		err := d.serve(ctx)
		stop(err)
		d.served <- err
	}()
}

func (d *Devices) serve(ctx context.Context) error {
	if d.takenOver { // answer the requests that the previous daemon had read and not answered
		if err := d.server.Resend(); err != nil {
			d.log.Error("reads that a previous daemon had begun are lost", "err", err)
		}
	}
	err := d.server.Serve(ctx)
	if ctx.Err() == nil && !d.closing.Load() {
		d.unserved.Store(true)
		err = errors.Join(err,
			fmt.Errorf("the kernel sends no more requests: was %s unmounted?", mount.Devices(d.root)))
	}
	return err
}

// unmountTimeout bounds the attempts to unmount devices that are in use.
const unmountTimeout = 200 * time.Millisecond

// Close unmounts the devices if nothing uses them, and ends serving. If containers use them, the
// mount stays, the keeper holds the connection, and reads wait for the next daemon.
func (d *Devices) Close() error {
	d.closing.Store(true)
	// The devices are still being served, so a process that uses the mount (the watchdog, df) gets
	// its answer, and then releases the mount.
	unmounted := d.server.Unmount(unmountTimeout)
	var served error
	if d.served != nil {
		d.stopServing()
		served = <-d.served
	}
	if unmounted != nil { // the last answer may have ended the last use
		unmounted = d.server.Unmount(0)
	}
	if unmounted == nil {
		// Without drop, a keeper process would end by itself a second later.
		return errors.Join(served, d.server.Detach(), d.drop(context.Background()))
	}
	d.keepAgain(context.Background()) // now or never: this daemon ends
	if errors.Is(unmounted, unix.EBUSY) {
		d.log.Info("containers use the devices: their reads wait for the next daemon", "root", d.root)
		unmounted = nil
	}
	return errors.Join(unmounted, served, d.server.Detach())
}
