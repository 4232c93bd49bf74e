package directory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/node/flight"
	"lighter/node/killed"
	"lighter/node/mount"
)

// lookInside is called for a request inside an image's own directory. If the tree is not mounted
// over the name, lookInside has it mounted. The errno is ESTALE if the kernel should walk the path
// again: it then finds the tree. It is 0 if the requesting process does not see the mount. Such a
// request is answered from the returned directory, where the node has mounted the tree.
//
// locked says that the kernel holds the lock of the image's directory until the request is
// answered. Then lookInside does not wait until the tree is mounted over the name.
func (d *Directory) lookInside(ctx context.Context, k key, locked bool) (i *image, errno syscall.Errno) {
	ctx, cancel := killed.Context(ctx)
	defer cancel()
	i, p, failed := d.begin(k, requesterOf(ctx))
	switch {
	case failed != nil:
		return nil, syscall.EIO
	case p == nil:
		return i, 0
	case !locked:
		if err := p.call.Wait(ctx); err != nil {
			return nil, errnoOf(ctx)
		}
		return nil, syscall.ESTALE
	case d.isFirst(ctx, p):
		return nil, syscall.ESTALE // the call goes on: this request counts as its waiter for ever
	}
	if err := p.call.WaitBegun(ctx); err != nil {
		return nil, errnoOf(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if i = d.images[k]; i == nil {
		return nil, syscall.ESTALE
	}
	return i, 0
}

// errnoOf returns the errno of a wait that has failed. ctx ends when the process is killed.
func errnoOf(ctx context.Context) syscall.Errno {
	if ctx.Err() != nil {
		return syscall.EINTR
	}
	return syscall.EIO // the log has the cause
}

// begin returns the image with a key if its tree is mounted over its name. Otherwise it begins to
// mount the tree, or joins the mount in progress. It returns an error if that has just failed.
func (d *Directory) begin(k key, by requester) (*image, *pending, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if i := d.images[k]; i != nil && i.bound {
		i.used = now
		if now.Sub(i.seen) > checkPause {
			i.seen = now
			select {
			case d.checks <- i:
			default: // the next request tries again
			}
		}
		return i, nil, nil
	}
	if d.closed {
		return nil, nil, errClosed
	}
	if f, ok := d.failed[k]; ok && now.Before(f.until) {
		return nil, nil, f.err
	}
	if d.pending[k] == nil {
		if isMapped(k) && !by.link {
			return nil, nil, errUnmapped
		}
		user, err := by.user()
		if err != nil {
			return nil, nil, fmt.Errorf("find the user of a request: %w", err)
		}
		if full, final := d.share(k, user); final {
			return nil, nil, full // others may begin to mount this image
		}
		d.pending[k] = &pending{told: map[uint32]bool{}, thread: by.thread, user: user}
	}
	return nil, d.join(k), nil
}

// join joins the mount in progress of an image, or returns nil if there is none. d.mu is held.
func (d *Directory) join(k key) *pending {
	p := d.pending[k]
	if p != nil {
		p.call = d.mounts.Join(p, func(ctx context.Context, c *flight.Call) error { return d.mount(ctx, c, k) })
	}
	return p
}

// isFirst reports whether a thread's request is its first one inside an image while the image is
// mounted.
func (d *Directory) isFirst(ctx context.Context, p *pending) bool {
	caller, _ := fuse.FromContext(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	first := !p.told[caller.Pid]
	p.told[caller.Pid] = true
	return first
}

// check finds out whether an image is still mounted over its name. The kernel detaches the mount if
// it has dropped the name.
func (d *Directory) check(i *image) {
	bound, err := mount.Bound(d.config.Root, d.path(i.key))
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil && !bound {
		i.bound = false
	}
}

// mount mounts an image's tree over its name. It calls c.Begin when the tree is mounted elsewhere,
// and can be read there.
func (d *Directory) mount(ctx context.Context, c *flight.Call, k key) (err error) {
	c.Keep()
	ctx, cancel := context.WithTimeoutCause(ctx, mountTimeout, errTimeout)
	defer cancel()
	defer func() { d.settle(k, err) }()
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	i, err := d.mountTree(ctx, k)
	if err == nil {
		err = d.mountOver(c, i)
	}
	if errors.Is(err, mount.ErrNotMounted) { // because another image was idle that has the same tree
		if i, err = d.mountTree(ctx, k); err == nil {
			err = d.mountOver(c, i)
		}
	}
	if err != nil {
		return err
	}
	if d.config.Links != nil { // a container runtime mounts it
		d.config.Chains.NoteStart(k.chain)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i.bound, i.seen = true, time.Now()
	return nil
}

// mountOver mounts an image's mounted tree over its name.
func (d *Directory) mountOver(c *flight.Call, i *image) error {
	c.Begin()
	bound, err := mount.Bound(d.config.Root, d.path(i.key))
	if err == nil && !bound {
		err = d.bind(i.key, i.tree)
	}
	return err
}

// mountTree mounts an image's tree, not yet over its name.
func (d *Directory) mountTree(ctx context.Context, k key) (*image, error) {
	for {
		d.mu.Lock()
		user := d.pending[k].user
		d.mu.Unlock()
		i, err := d.admit(k, user)
		if err != nil {
			return nil, err
		}
		i.work.Lock()
		if !d.isGone(i) {
			defer i.work.Unlock()
			tree, err := d.config.Chains.Mount(ctx, k.chain)
			if err == nil {
				tree, err = d.addLayer(ctx, i, tree)
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			if err == nil {
				i.tree, i.mounted = tree, true
			}
			return i, err
		}
		i.work.Unlock()
	}
}

// settle ends a mount in progress. An image that was never mounted is given up.
func (d *Directory) settle(k key, err error) {
	d.mu.Lock()
	delete(d.pending, k)
	i := d.images[k]
	giveUp := err != nil && i != nil && !i.mounted
	if err == nil {
		d.stats.Mounts++
		delete(d.failed, k)
	} else {
		d.stats.Failures++
		if len(d.failed) >= maxFailed {
			clear(d.failed)
		}
		if full := new(fullError); !errors.As(err, &full) || full.user == 0 { // else it may be mounted for others
			d.failed[k] = failure{err, time.Now().Add(failedTTL)}
		}
		if i != nil && !i.bound {
			i.user = 0
		}
	}
	d.mu.Unlock()
	if err != nil {
		d.config.Log.Error("cannot mount an image in the directory of images", "image", k.name, "chain", k.chain,
			"err", err)
	}
	if giveUp {
		i.work.Lock()
		defer i.work.Unlock()
		d.giveUp(i)
	}
}

// awaitMount waits for a mount in progress, before a request for the image's name is answered. It
// does not wait long for the last step: in a rare case, that step waits for this answer.
func (d *Directory) awaitMount(ctx context.Context, k key) {
	d.mu.Lock()
	if i := d.images[k]; i != nil {
		i.used = time.Now()
	}
	p := d.join(k)
	d.mu.Unlock()
	if p == nil || p.call.WaitBegun(ctx) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	_ = p.call.Wait(ctx) // the request inside the image reports the error
}

// isOwn reports whether a request comes from this process.
func isOwn(ctx context.Context) bool {
	caller, ok := fuse.FromContext(ctx)
	return ok && unix.Tgkill(os.Getpid(), int(caller.Pid), 0) == nil
}

// setMoved notes that a name does not stand for a tree any more. The kernel detaches the tree when
// it gets the answer with the new tree.
func (d *Directory) setMoved(k key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := d.images[k]; i != nil {
		i.bound, i.moved = false, true
	}
}
