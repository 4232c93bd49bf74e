package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"lighter/durable"
	"lighter/node/mount"
	"lighter/wire"
)

// binds are the trees that people have mounted somewhere by name, without
// containerd. They are on the disk too, for the next daemon.
type binds struct {
	path      string
	leftovers *durable.Leftovers
	unknown   bool // there may be others, of a former daemon: the file could not be read

	mu   sync.Mutex // guards dirs, and the file
	dirs map[string]Bind
}

// Bind is one of them.
type Bind struct {
	Dir   string `json:"dir"` // absolute, without symbolic links
	Name  string `json:"name"`
	Chain string `json:"chain"`
	Lost  string `json:"lost,omitempty"` // why it could not be brought back; each start tries again
}

// broken ends the name that a file gets which cannot be read.
const broken = ".broken"

// openBinds reads what a former daemon had mounted. A list that cannot be read is
// moved aside, and the node goes on without it.
func openBinds(root string, leftovers *durable.Leftovers) *binds {
	b := &binds{path: filepath.Join(root, "binds.json"), leftovers: leftovers, dirs: map[string]Bind{}}
	text, err := os.ReadFile(b.path)
	var list []Bind
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.unknown, list = true, nil
		leftovers.Note(b.path, errors.Join(err, os.Rename(b.path, b.path+broken)))
	}
	if _, err := os.Lstat(b.path + broken); err == nil {
		b.unknown = true
		leftovers.Note(b.path+broken, errors.New("it names what was mounted with lighter mount, and cannot be read: while it is there, "+
			"no tree goes that was there when the node started; unmount what was mounted so, and remove it"))
	}
	for _, one := range list {
		b.dirs[one.Dir] = one
	}
	return b
}

// put adds a bind, unless its directory is taken.
func (b *binds) put(one Bind) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, taken := b.dirs[one.Dir]; taken {
		return errTaken(one.Dir)
	}
	b.dirs[one.Dir] = one
	if err := b.save(); err != nil {
		delete(b.dirs, one.Dir)
		return err
	}
	return nil
}

// replace changes a bind. A change that cannot be saved is noted, and found out anew by
// the next daemon.
func (b *binds) replace(one Bind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dirs[one.Dir] = one
	_ = b.save() // it is one of the leftovers
}

func (b *binds) remove(dir string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.dirs, dir)
	return b.save()
}

func (b *binds) save() error {
	text, err := json.Marshal(b.listLocked())
	if err == nil {
		err = durable.Replace(b.path, text)
	}
	if err != nil {
		err = fmt.Errorf("remember what is mounted for people: %w", err)
	}
	b.leftovers.Note(b.path, err)
	return err
}

func (b *binds) get(dir string) (Bind, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	one, ok := b.dirs[dir]
	return one, ok
}

func (b *binds) list() []Bind {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.listLocked()
}

func (b *binds) listLocked() []Bind {
	list := make([]Bind, 0, len(b.dirs))
	for _, one := range b.dirs {
		list = append(list, one)
	}
	return list
}

func errTaken(dir string) error {
	return fmt.Errorf("something is mounted at %s already: `lighter unmount %s` first", dir, dir)
}

// bindImage mounts the tree of the named image at dir, read-only.
func (n *Node) bindImage(ctx context.Context, name, platform, dir string) (Bind, error) {
	b := Bind{Name: name}
	var err error
	if b.Dir, err = realDir(dir); err != nil {
		return b, err
	}
	image, err := n.findImage(ctx, name, platform)
	if err != nil {
		return b, err
	}
	b.Chain = image.Chain
	if err := n.binds.put(b); err != nil {
		return b, err
	}
	n.chains.Hold(b.Chain)
	err = n.bindChain(ctx, b, mount.Bind)
	if err == nil {
		if err = ctx.Err(); err == nil { // else whoever asked has gone, and will not unmount it
			return b, nil
		}
		_, failed := mount.Unbind(n.config.Root, b.Dir)
		err = errors.Join(err, failed)
	}
	return b, errors.Join(err, n.forgetBind(b))
}

// realDir returns the one name that a directory has: absolute, and without the
// symbolic links that mount and unmount would take differently.
func realDir(dir string) (string, error) {
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

// bindChain mounts the chain's tree and calls bind to show it at b.Dir.
func (n *Node) bindChain(ctx context.Context, b Bind, bind func(tree, dir string) error) error {
	tree, err := n.chains.Mount(ctx, b.Chain)
	if err != nil {
		return err
	}
	return bind(tree, b.Dir)
}

// findImage asks the hub for the one image of that name that can be run here.
func (n *Node) findImage(ctx context.Context, name, platform string) (wire.Image, error) {
	images, err := n.hubs.Images(ctx, name)
	if err != nil {
		return wire.Image{}, err
	}
	var found []wire.Image
	var seen string
	for _, image := range images {
		if platform != "" && image.Platform != platform {
			continue
		}
		seen = fmt.Sprintf(" (it is %s there: %s)", image.State, image.Error)
		if image.State == wire.StateReady && image.Chain != "" {
			found = append(found, image)
		}
	}
	switch {
	case len(found) == 0:
		return wire.Image{}, fmt.Errorf("hub %s has no image %q that can be mounted%s", n.hubs.URL(), name, seen)
	case len(found) > 1:
		return wire.Image{}, fmt.Errorf("image %q has several platforms: choose one with --platform", name)
	}
	return found[0], nil
}

// errNotBound says that this node has mounted nothing there.
var errNotBound = errors.New("this node has mounted nothing there")

// unbind undoes bindImage. What somebody else has mounted there meanwhile stays.
func (n *Node) unbind(dir string) error {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	b, ok := n.binds.get(filepath.Clean(dir))
	if !ok {
		return fmt.Errorf("unmount %s: %w", dir, errNotBound)
	}
	if _, err := mount.Unbind(n.config.Root, b.Dir); err != nil {
		return err
	}
	return n.forgetBind(b)
}

func (n *Node) forgetBind(b Bind) error {
	err := n.binds.remove(b.Dir)
	n.chains.Drop(b.Chain)
	return err
}

// holdBinds keeps the trees that a former daemon had mounted for people from
// being taken for garbage.
func (n *Node) holdBinds() {
	for _, b := range n.binds.list() {
		n.chains.Hold(b.Chain)
	}
}

// recoverTimeout bounds recoverBinds, for which containerd waits. It needs no
// network unless an index is damaged.
const recoverTimeout = 5 * time.Second

// recoverBinds mounts them again where they still are, if the former daemon's
// devices were lost. What cannot be mounted again is unmounted; it is not forgotten.
// What cannot be written down, as on a full disk, is one of the leftovers.
func (n *Node) recoverBinds(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
	defer cancel()
	for _, b := range n.binds.list() {
		n.recoverBind(ctx, b)
	}
}

func (n *Node) recoverBind(ctx context.Context, b Bind) {
	bound, err := mount.Bound(n.config.Root, b.Dir)
	switch {
	case err != nil:
	case !bound && b.Lost == "":
		_ = n.forgetBind(b) // somebody has unmounted it
		return
	case bound && n.devices.TakenOver():
		return
	case bound:
		err = n.bindChain(ctx, b, mount.Rebind)
	default:
		err = n.bindChain(ctx, b, mount.Bind)
	}
	b.Lost = ""
	if err != nil {
		_, failed := mount.Unbind(n.config.Root, b.Dir)
		b.Lost = errors.Join(err, failed).Error()
		n.log.Error("what was mounted for people is not any more", "name", b.Name, "dir", b.Dir, "cause", b.Lost)
	}
	n.binds.replace(b)
}
