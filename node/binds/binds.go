// Package binds mounts images at directories for `lighter mount`, with a running node and without
// containerd. An image stays mounted until `lighter unmount`, or until the machine restarts. If the
// connection to the kernel was lost, the next daemon mounts the image again. Each mount holds its
// image's chain (Chains.Hold), so that the image's tree is not removed.
//
// If no node runs, `lighter mount` uses package standalone.
package binds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"lighter/durable"
	"lighter/node/mount"
	"lighter/wire"
)

// Bind is an image's tree that is mounted at a directory.
type Bind struct {
	Dir   string `json:"dir"`            // absolute, without symbolic links
	Name  string `json:"name"`           // the image's name
	Chain string `json:"chain"`          // the image's top chain
	Lost  string `json:"lost,omitempty"` // why the tree could not be mounted again; each start of the node tries again
}

// Chains mounts the trees of chains, and counts the users of chains (resolver.Chains).
type Chains interface {
	Mount(ctx context.Context, chain string) (tree string, err error)
	Hold(chain string)
	Drop(chain string)
	// NoteStart is called when a container is about to start from a mounted chain.
	NoteStart(chain string)
}

// Hub knows images by name.
type Hub interface {
	Images(ctx context.Context, name string) ([]wire.Image, error)
	URL() string
}

// ErrNotBound reports that the node has mounted nothing at a directory.
var ErrNotBound = errors.New("this node has mounted nothing there")

// ErrTaken returns the error for a directory at which something is mounted.
func ErrTaken(dir string) error {
	return fmt.Errorf("something is mounted at %s already: `lighter unmount %s` first", dir, dir)
}

// Binds are the binds of one node. It is safe for concurrent use.
type Binds struct {
	root   string
	list   *list
	hub    Hub
	chains Chains
	log    *slog.Logger
}

// Open reads the list of previous daemons' binds, and holds their chains. If the list cannot be
// read, the list is empty, its file is reported as a leftover, and Incomplete returns true.
func Open(root string, hub Hub, chains Chains, leftovers *durable.Leftovers, log *slog.Logger) *Binds {
	b := &Binds{root: root, list: openList(root, leftovers), hub: hub, chains: chains, log: log}
	for _, entry := range b.list.all() {
		chains.Hold(entry.Chain)
	}
	return b
}

// Incomplete reports whether previous daemons may have made binds that are not in the list. If so,
// any tree may be in use.
func (b *Binds) Incomplete() bool { return b.list.file.Incomplete() }

// List returns the binds, by directory.
func (b *Binds) List() []Bind { return b.list.all() }

// Bind mounts the tree of the named image at dir, read-only. platform may be empty if the image has
// only one platform.
func (b *Binds) Bind(ctx context.Context, name, platform, dir string) (Bind, error) {
	entry := Bind{Name: name}
	var err error
	if entry.Dir, err = RealDir(dir); err != nil {
		return entry, err
	}
	image, err := b.findImage(ctx, name, platform)
	if err != nil {
		return entry, err
	}
	entry.Chain = image.Chain
	return entry, b.add(ctx, entry, mount.Bind)
}

// add adds a bind to the list, and calls bind to mount the tree at the directory.
func (b *Binds) add(ctx context.Context, entry Bind, bind func(tree, dir string) error) error {
	if err := b.list.add(entry); err != nil {
		return err
	}
	b.chains.Hold(entry.Chain)
	err := b.mount(ctx, entry, bind)
	if err == nil {
		if err = ctx.Err(); err == nil {
			return nil
		}
		// The client has gone away before it knew of the mount, and will not unmount it.
		_, failed := mount.Unbind(b.root, entry.Dir)
		err = errors.Join(err, failed)
	}
	return errors.Join(err, b.forget(entry))
}

// RealDir returns a directory's path without symbolic links, as in the kernel's list of mounts. dir
// must be an absolute path.
func RealDir(dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("%q is not an absolute path", dir)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("mount at %s: %w", dir, err)
	}
	info, err := os.Stat(real)
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a directory")
	}
	if err != nil {
		return "", fmt.Errorf("mount at %s: %w", dir, err)
	}
	return real, nil
}

// mount mounts the tree of a bind, and calls bind to mount the tree at the directory, too.
func (b *Binds) mount(ctx context.Context, entry Bind, bind func(tree, dir string) error) error {
	tree, err := b.chains.Mount(ctx, entry.Chain)
	if err != nil {
		return err
	}
	return bind(tree, entry.Dir)
}

// findImage asks the hub for the image of that name and platform. It fails if the hub has no such
// image that can be mounted, or several and no platform is named.
func (b *Binds) findImage(ctx context.Context, name, wanted string) (wire.Image, error) {
	images, err := b.hub.Images(ctx, name)
	if err != nil {
		return wire.Image{}, err
	}
	if wanted != "" && len(images) > 0 {
		if images, err = fitting(images, name, wanted); err != nil {
			return wire.Image{}, err
		}
	}
	if images, err = mountable(images, b.hub.URL(), name); err != nil {
		return wire.Image{}, err
	}
	if wanted == "" && len(images) > 1 {
		return wire.Image{}, fmt.Errorf("image %q has several platforms: choose one with --platform", name)
	}
	return images[0], nil
}

// mountable returns those of a name's images that can be mounted, at least one.
func mountable(images []wire.Image, url, name string) (found []wire.Image, err error) {
	var state string
	for _, image := range images {
		state = fmt.Sprintf(" (it is %s there)", image.State)
		if image.Error != "" {
			state = fmt.Sprintf(" (it is %s there: %s)", image.State, image.Error)
		}
		if image.State == wire.StateReady && image.Chain != "" {
			found = append(found, image)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("hub %s has no image %q that can be mounted%s", url, name, state)
	}
	return found, nil
}

// Unbind undoes Bind. A mount that another program has made at dir since then stays.
func (b *Binds) Unbind(dir string) error {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	entry, ok := b.list.get(filepath.Clean(dir))
	if !ok {
		return fmt.Errorf("unmount %s: %w", dir, ErrNotBound)
	}
	if _, err := mount.Unbind(b.root, entry.Dir); err != nil {
		return err
	}
	return b.forget(entry)
}

func (b *Binds) forget(entry Bind) error {
	err := b.list.remove(entry.Dir)
	b.chains.Drop(entry.Chain)
	return err
}

// recoverTimeout bounds Recover, because containerd waits for it. Recover needs no network unless
// an index is damaged.
const recoverTimeout = 5 * time.Second

// Recover restores the binds of previous daemons. If the connection to the kernel was not taken
// over, the mounts are dead, and Recover mounts each tree again. It also tries again to mount trees
// that could not be mounted at an earlier start. If a tree cannot be mounted, its directory is
// unmounted, and its bind stays in the list with the reason. A bind whose tree was unmounted, for
// example because the machine has restarted, is removed from the list.
func (b *Binds) Recover(ctx context.Context, takenOver bool) {
	ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
	defer cancel()
	for _, entry := range b.list.all() {
		b.recover(ctx, entry, takenOver)
	}
}

func (b *Binds) recover(ctx context.Context, entry Bind, takenOver bool) {
	bound, err := mount.Bound(b.root, entry.Dir)
	switch {
	case err != nil:
	case !bound && entry.Lost == "":
		_ = b.forget(entry) // it was unmounted without the node; a list that cannot be saved becomes a leftover
		return
	case bound && takenOver:
		return
	case bound:
		err = b.mount(ctx, entry, mount.Rebind)
	default:
		err = b.mount(ctx, entry, mount.Bind)
	}
	entry.Lost = ""
	if err != nil {
		_, failed := mount.Unbind(b.root, entry.Dir)
		err = errors.Join(err, failed)
		entry.Lost = err.Error()
		b.log.Error("an image of lighter mount is not mounted any more", "image", entry.Name, "dir", entry.Dir,
			"err", err)
	}
	b.list.replace(entry)
}

// Release unmounts the binds of a node that does not run. The next node removes them from the list.
func Release(root string, leftovers *durable.Leftovers) (err error) {
	l := openList(root, leftovers)
	for _, entry := range l.all() {
		_, failed := mount.Unbind(root, entry.Dir)
		err = errors.Join(err, failed)
	}
	if l.file.Incomplete() {
		err = errors.Join(err, fmt.Errorf("the list of images mounted by lighter mount in %s cannot be read: "+
			"unmount them by hand", root))
	}
	return err
}
