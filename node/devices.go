package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"lighter/node/fuse"
	"lighter/node/keeper"
	"lighter/node/mount"
)

// kept is the note that goes with the connection to the kernel from one daemon to
// the next, which may be older or newer. Version is of who wrote it, Oldest of
// who can read it.
type kept struct {
	Version int        `json:"version"`
	Oldest  int        `json:"oldest"`
	Mount   string     `json:"mount"` // the file system's number
	State   fuse.State `json:"state"`
}

// The version of the note that this daemon writes, and the newest that it can
// read; and the oldest daemon that can read it. They are variables, and texts, so
// that tests can link a daemon of a later version (-ldflags -X).
var (
	keptVersion = "2"
	keptOldest  = "1"
)

// journalVersion is the oldest version that knows of a journal beside the
// connection.
const journalVersion = 2

// number is what a variable that is linked in says; 0 is no version.
func number(version string) int {
	n, _ := strconv.Atoi(version)
	return n
}

// errTooNew says that there are devices of a daemon that this one is too old to
// succeed. It ends rather than take them from their users.
var errTooNew = errors.New("the devices of a former daemon are too new for this one")

// errNothingKept says that nobody keeps devices of a former daemon.
var errNothingKept = errors.New("no former daemon's devices are kept")

// errNoUse says that what is kept could be served by no daemon, however often it is
// tried. What may be over the next time is not of that kind.
var errNoUse = errors.New("what is kept of a former daemon's devices is of no use")

// openKeepers finds who can keep the devices: the service manager, if it can, and a
// process of our own. The first is who will; the others may, of a former daemon.
func (n *Node) openKeepers() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	n.keepers = []keeper.Keeper{keeper.Process{Root: n.config.Root, Command: []string{program, "keeper", n.config.Root}}}
	if n.manager.Stores() {
		n.keepers = slices.Insert(n.keepers, 0, keeper.Keeper(n.manager))
	}
	return nil
}

// openDevices takes over the connection of a former daemon, or makes one. If one is
// kept and something is in the way for now (no descriptors or no memory are left, the
// keeper does not answer), it fails and leaves all as it is, for the next daemon.
func (n *Node) openDevices(ctx context.Context) (err error) {
	if err := n.openKeepers(); err != nil {
		return err
	}
	n.server, err = n.takeOver(ctx)
	switch {
	case err == nil:
		n.takenOver = true
		n.log.Info("a former daemon's devices are taken over")
		n.keepAgain(ctx) // with a note that is this daemon's
		return nil
	case errors.Is(err, errNothingKept):
	case errors.Is(err, errTooNew):
		return err
	case !errors.Is(err, errNoUse):
		return fmt.Errorf("take over a former daemon's devices: %w: they stay kept, and what containers read of them waits: start the node again, or, to give up what they read, run `lighter release --root %s` first", err, n.config.Root)
	default:
		n.log.Error("a former daemon's devices cannot be taken over: what containers read of them and is not in memory is an error from now on", "cause", err)
		// Whoever holds the connection keeps it from ending, and readers waiting.
		if err := n.dropDevices(ctx); err != nil {
			return err
		}
	}
	if n.inherited {
		// The dead daemon holds its connection itself, as long as it hangs, and
		// it hangs in what is read through that.
		if err := mount.Release(n.config.Root); err != nil {
			return err
		}
	}
	dir := mount.Devices(n.config.Root)
	if n.server, err = fuse.Mount(dir, n.config.Resend, n.log); err != nil {
		return fmt.Errorf("%w (if nothing else serves it, `lighter release --root %s` gives it up)", err, n.config.Root)
	}
	n.keepAgain(ctx)
	return nil
}

// dropDevices has everybody let go of the connection.
func (n *Node) dropDevices(ctx context.Context) error {
	var errs []error
	for _, k := range n.keepers {
		errs = append(errs, k.Drop(ctx))
	}
	return errors.Join(errs...)
}

func (n *Node) takeKept(ctx context.Context) (files []*os.File, note []byte, err error) {
	for _, k := range n.keepers {
		files, note, err = k.Take(ctx)
		if !errors.Is(err, fs.ErrNotExist) {
			return files, note, err
		}
	}
	return nil, nil, fmt.Errorf("%w: %v", errNothingKept, err)
}

// takeOver adopts what is kept, or fails with errNothingKept, errTooNew, errNoUse, or
// what is in the way for now.
func (n *Node) takeOver(ctx context.Context) (*fuse.Server, error) {
	files, note, err := n.takeKept(ctx)
	if err != nil {
		return nil, err
	}
	defer closeFiles(files)
	var k kept
	err = json.Unmarshal(note, &k) // of a newer one, the versions may be all that it understands
	if known := number(keptVersion); k.Oldest > known {
		return nil, fmt.Errorf("%w: their state has version %d, to be read by daemons from version %d on, and this one knows %d: start a newer lighter node, or, to give up what containers read of them, run `lighter release --root %s` first",
			errTooNew, k.Version, k.Oldest, known, n.config.Root)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: read its note: %w", errNoUse, err)
	}
	now, err := mount.Connection(n.config.Root)
	if err != nil {
		return nil, err
	}
	if now != k.Mount {
		return nil, fmt.Errorf("%w: it is mount %s, and on %s is %q", errNoUse, k.Mount, mount.Devices(n.config.Root), now)
	}
	server, err := fuse.Adopt(files, mount.Devices(n.config.Root), k.State, n.log)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", errNoUse, err)
	}
	return server, err
}

func closeFiles(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}

// startDevices serves the devices from the moment that it can be: all that comes
// later may unmount a tree, and so wait for what is read of it. It goes on to the
// last, too.
func (n *Node) startDevices(ctx context.Context) {
	ctx, n.stopServing = context.WithCancel(context.WithoutCancel(ctx))
	n.served = make(chan error, 1)
	go func() { n.served <- n.serveDevices(ctx) }()
}

// serveDevices answers the kernel until ctx is done. If it ends before, by
// somebody's umount, the node ends: it could mount nothing any more.
func (n *Node) serveDevices(ctx context.Context) error {
	if n.takenOver { // what the former daemon had read and not answered
		if err := n.server.Resend(); err != nil {
			n.log.Error("reads that a former daemon had begun are lost", "cause", err)
		}
	}
	err := n.server.Serve(ctx)
	if ctx.Err() == nil && !n.stopping.Load() {
		n.unserved.Store(true)
		err = errors.Join(err, fmt.Errorf("the kernel asks for nothing any more: was %s unmounted?", mount.Devices(n.config.Root)))
	}
	n.stop(err)
	return err
}

// unmountPatience is for how long it is tried to unmount devices that are in use.
const unmountPatience = 200 * time.Millisecond

// closeDevices unmounts the devices, if nobody uses them, and ends serving them. If
// containers use them, they keep the mount, and wait for the next daemon with what they read.
func (n *Node) closeDevices() error {
	// As long as they are served: whoever asks something of the mount just now (the
	// watchdog, somebody's df) has his answer, and lets go of it.
	unmounted := n.server.Unmount(unmountPatience)
	var served error
	if n.served != nil {
		n.stopServing()
		served = <-n.served
	}
	if unmounted != nil { // then perhaps by the last read that has been answered
		unmounted = n.server.Unmount(0)
	}
	if unmounted == nil {
		return errors.Join(served, n.server.Detach(), n.dropDevices(context.Background())) // a process of our own would end by itself, a second later
	}
	n.keepAgain(context.Background()) // the last moment
	if errors.Is(unmounted, unix.EBUSY) {
		n.log.Info("containers use the devices: they wait for the next daemon with what they read", "root", n.config.Root)
		unmounted = nil
	}
	return errors.Join(unmounted, served, n.server.Detach())
}
