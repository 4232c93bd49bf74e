package directory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/node/flight"
	"lighter/node/mount"
	"lighter/wire"
)

// Hub knows images by name.
type Hub interface {
	Images(ctx context.Context, name string) ([]wire.Image, error)
	AllImages(ctx context.Context, limit int64) ([]wire.Image, error)
}

// Chains mounts the trees of chains, and counts the users of chains (resolver.Resolver).
type Chains interface {
	Mount(ctx context.Context, chain string) (tree string, err error)
	ImageChain(ctx context.Context, manifest, repository string) (chain string, err error)
	Hold(chain string)
	Drop(chain string)
	// NoteStart is called when a container is about to start from a mounted chain.
	NoteStart(chain string)
	// IsShared reports whether a chain's tree has users besides a number of own holders of the
	// chain.
	IsShared(chain string, own int) bool
	Tree(chain string) chunk.ID
}

// Trees unmounts trees that nobody uses (mount.Mounts).
type Trees interface {
	UnmountUnused(tree chunk.ID) (used bool, err error)
}

// Configs reads the configs of images, and keeps them while no hub answers (imageconfig.Kept).
type Configs interface {
	Config(ctx context.Context, image wire.Image) ([]byte, error)
	Forget(manifest string, wanted func() bool) error
}

// Config is the configuration of a Directory. All fields but Dir, Group, Hosts, Layer and
// Beside are required, and Hub or Links.
type Config struct {
	Root string        // the node's root
	File string        // name of the file, in the root, that lists the images on the disk
	Dir  string        // where the directory is; empty: nowhere
	Idle time.Duration // an image that was not used for this long is unmounted
	// Group is the number of the group whose members alone, besides root, may use the directory. 0:
	// everybody may.
	Group int
	// Hosts are names of hosts that stand for other hosts: symbolic links in the directory.
	Hosts map[string]string
	// Layer writes, into an empty directory, files that are shown over an image's tree. Nil: images
	// are shown as they are.
	Layer func(dir, tree string, config []byte) error

	Beside    *Directory // another directory of this node, or nil
	Hub       Hub        // the directory shows the hub's images by name
	Links     Links      // not nil: the directory has symbolic links to the trees of chains instead
	Configs   Configs    // needed with Layer alone
	Chains    Chains
	Trees     Trees
	Leftovers *durable.Leftovers
	Log       *slog.Logger
}

// Directory is the directory of images of one node. It is safe for concurrent use.
type Directory struct {
	config  Config
	dir     string // Config.Dir without symbolic links, once it is shown
	started time.Time
	list    *list
	names   *names // nil: the directory has links
	mounts  flight.Group[*pending]
	slots   chan struct{} // has an element for each image that is being mounted
	checks  chan *image   // images whose mounts are to be checked
	beside  *beside

	mu      sync.Mutex // guards what follows, and the fields of images
	images  map[key]*image
	added   map[key]uint32 // images that are being added to images, with the users that they count for
	pending map[key]*pending
	failed  map[key]failure
	hidden  error // why the directory is not shown; nil: it is, or it is not configured
	closed  bool  // nothing is mounted any more
	stats   Stats
}

// image is an image that is mounted, or was mounted and is still on the disk.
type image struct {
	key
	// work is held for writing while the tree is mounted or unmounted, and for reading while a file
	// is looked up through this file system. It is taken before Directory.mu.
	work sync.RWMutex

	mounted bool // the tree was mounted, perhaps by a previous daemon

	// tree is the directory where the node has mounted the tree, with its layer if it has one.
	// Empty: it is not mounted, or not since the node started.
	tree string
	// layered is the mount point of the tree with its layer, or empty. work guards it.
	layered string
	bound   bool      // the tree is mounted over the name
	moved   bool      // the name has another tree, or is gone
	gone    bool      // the image was given up
	used    time.Time // when a path through the name was last walked
	seen    time.Time // when the mount over the name was last checked
	user    uint32    // whose request has mounted the tree, as long as it may be used; 0: root's, or nobody's
	shared  bool      // it was idle, and its tree has other users: it takes no place
}

// pending is a mount in progress.
type pending struct {
	call   *flight.Call
	told   map[uint32]bool // threads whose request was answered with ESTALE
	thread uint32          // whose user namespace the tree is mapped into, if the image's name says so
	user   uint32          // for whom the image counts; 0: root
}

// failure is a mount that has failed.
type failure struct {
	err   error
	until time.Time
}

// Stats counts what a directory has done since the node started.
type Stats struct {
	Mounts   int64 `json:"mounts"`   // trees that were mounted over their names
	Failures int64 `json:"failures"` // trees that could not be mounted
}

// Status is the state of a directory.
type Status struct {
	Dir    string        `json:"dir"`
	Hidden string        `json:"hidden,omitempty"` // why the directory is not shown
	Names  int           `json:"names"`            // images in the last list
	Listed time.Time     `json:"listed,omitzero"`  // when the list was requested; zero: no hub has answered
	Away   string        `json:"away,omitempty"`   // why no hub answers now
	Images []ImageStatus `json:"images"`
	Stats
}

// ImageStatus is an image that is mounted, or was mounted and is still on the disk.
type ImageStatus struct {
	Name    string    `json:"name"`
	Chain   string    `json:"chain"`
	Mounted bool      `json:"mounted"`
	Used    time.Time `json:"used"` // when a path through the name was last walked
}

// Open holds the chains of the images that previous daemons had mounted, and shows nothing yet. If
// the list of these images cannot be read, its file is reported as a leftover, and Incomplete
// returns true.
func Open(c Config) *Directory {
	d := &Directory{config: c, started: time.Now(), list: openList(c.Root, c.File, c.Leftovers),
		slots: make(chan struct{}, mountsTogether), checks: make(chan *image, mountsTogether), images: map[key]*image{},
		added: map[key]uint32{}, pending: map[key]*pending{}, failed: map[key]failure{}}
	for _, k := range d.list.images {
		c.Chains.Hold(k.chain)
		d.images[k] = &image{key: k, mounted: true, used: d.started}
	}
	d.beside = &beside{}
	if c.Beside != nil {
		d.beside = c.Beside.beside
	}
	d.beside.add(d)
	if c.Links == nil {
		d.names = newNames(c.Hub, c.Chains, "", d.list.images, c.Log)
	}
	return d
}

// Incomplete reports whether previous daemons may have mounted images that are not in the list. If
// so, any tree may be in use.
func (d *Directory) Incomplete() bool { return d.list.file.Incomplete() }

// Show mounts the directory, if one is configured. It removes what a previous daemon has mounted
// there. A node without its directory is still useful, so a failure is logged and is in the status.
func (d *Directory) Show() {
	err := d.show()
	if err == nil {
		return
	}
	d.mu.Lock()
	d.hidden = err
	d.mu.Unlock()
	d.config.Log.Error("the directory of images is not shown: start the node again once this is repaired",
		"dir", d.config.Dir, "err", err)
}

func (d *Directory) show() error {
	if err := detach(d.config.Root, d.config.File, d.list.dir); err != nil {
		return err
	}
	if d.config.Dir == "" {
		if d.list.dir == "" {
			return nil
		}
		return d.list.set("")
	}
	if err := os.MkdirAll(d.config.Dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of images: %w", err)
	}
	dir, err := filepath.EvalSymlinks(d.config.Dir)
	if err != nil {
		return fmt.Errorf("resolve the path of the directory of images: %w", err)
	}
	// The file comes first: if the daemon is killed now, the next one finds the mount.
	if err := d.list.set(dir); err != nil {
		return err
	}
	d.dir = dir
	fd, err := mount.MountNames(d.config.Root, dir, d.config.Group != 0)
	if err != nil {
		return err
	}
	if err := d.serve(fd); err != nil {
		return errors.Join(err, mount.DetachNames(d.config.Root, dir))
	}
	return nil
}

// detach removes the directory that a node has shown at dir, and the layers over its trees.
// Processes that use them keep them. If dir is empty, there was none. file is as in Config.
func detach(root, file, dir string) error {
	if dir == "" {
		return nil
	}
	return errors.Join(mount.DetachNames(root, dir), mount.SplitAll(mount.MergedDir(root, file)))
}

// Close removes the directory. Processes that work in it keep the trees that they use.
func (d *Directory) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	return detach(d.config.Root, d.config.File, d.dir)
}

// Release removes the directory of a node that does not run. file is as in Config.
func Release(root, file string, leftovers *durable.Leftovers) error {
	return detach(root, file, openList(root, file, leftovers).dir)
}

// Run fetches the first list, and unmounts idle images until ctx is done.
func (d *Directory) Run(ctx context.Context) {
	if d.dir != "" && d.names != nil {
		d.names.refresh(ctx, listTTL)
	}
	tick := time.NewTicker(min(max(d.config.Idle/4, minSweep), maxSweep))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.sweep(ctx)
		case i := <-d.checks:
			d.check(i)
		case <-ctx.Done():
			return
		}
	}
}

// Status returns the state of the directory, or nil if none is configured.
func (d *Directory) Status() *Status {
	if d.config.Dir == "" {
		return nil
	}
	s := &Status{Dir: d.config.Dir, Images: []ImageStatus{}}
	if d.names != nil {
		var away error
		if s.Names, s.Listed, away = d.names.state(); away != nil {
			s.Away = away.Error()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Stats = d.stats
	if d.hidden != nil {
		s.Hidden = d.hidden.Error()
	}
	for k, i := range d.images {
		s.Images = append(s.Images, ImageStatus{k.name, k.chain, i.bound, i.used})
	}
	slices.SortFunc(s.Images, func(a, b ImageStatus) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Chain, b.Chain))
	})
	return s
}

// Chains returns the chains of the images that are mounted, or were mounted and are still on the
// disk.
func (d *Directory) Chains() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	chains := map[string]bool{}
	for k := range d.images {
		chains[k.chain] = true
	}
	return chains
}

// path returns the path of an image's name.
func (d *Directory) path(k key) string { return filepath.Join(d.dir, k.name) }

// sweep unmounts images that are idle, and gives up those whose names have other trees.
func (d *Directory) sweep(ctx context.Context) {
	for _, i := range d.unusedFor(d.config.Idle) {
		if ctx.Err() != nil {
			return
		}
		d.rest(i)
	}
	for full := d.overfull(); full != nil && ctx.Err() == nil && d.makeRoom(full); full = d.overfull() {
	}
}

// unusedFor returns the images that were not used for a while, the one that was used first first.
func (d *Directory) unusedFor(idle time.Duration) (images []*image) {
	d.mu.Lock()
	defer d.mu.Unlock()
	used := map[*image]time.Time{}
	for _, i := range d.images {
		if time.Since(i.used) >= idle {
			images = append(images, i)
			used[i] = i.used
		}
	}
	slices.SortFunc(images, func(a, b *image) int { return used[a].Compare(used[b]) })
	return images
}

// rest unmounts an image, and gives it up if its name has another tree. An image in use stays.
func (d *Directory) rest(i *image) {
	i.work.Lock()
	defer i.work.Unlock()
	d.mu.Lock()
	wanted := i.gone || time.Since(i.used) < d.config.Idle
	d.mu.Unlock()
	if wanted {
		return
	}
	unused, err := d.unmount(i)
	if err != nil {
		d.config.Log.Warn("cannot unmount an idle image", "image", i.name, "err", err)
	}
	d.mu.Lock()
	unwanted := i.moved || d.config.Dir == ""
	d.mu.Unlock()
	if unwanted {
		d.leave(i, unused)
	}
}

// unmount unmounts the tree of an image that is not used. i.work is held.
func (d *Directory) unmount(i *image) (unused bool, err error) {
	d.mu.Lock()
	bound, mounting := i.bound, d.pending[i.key] != nil
	d.mu.Unlock()
	if mounting {
		return false, nil
	}
	if bound {
		_, err := mount.Unbind(d.config.Root, d.path(i.key))
		d.mu.Lock()
		if i.bound = err != nil; i.bound {
			i.used = time.Now() // a process works in it
		}
		d.mu.Unlock()
		if i.bound {
			return false, nil
		}
	}
	if err := d.removeLayer(i); err != nil {
		return false, err
	}
	shared, used := d.isShared(i), false
	// Other users decide about a shared tree. A chain without one has a damaged statement: then no
	// tree is removed.
	if tree := d.config.Chains.Tree(i.chain); !shared && !tree.IsZero() {
		used, err = d.config.Trees.UnmountUnused(tree)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i.shared = i.shared && shared
	if !used && err == nil {
		i.user = 0
	}
	return !shared && !used, err
}

// giveUp forgets an image, and drops its chain. i.work is held.
func (d *Directory) giveUp(i *image) {
	d.mu.Lock()
	if i.gone {
		d.mu.Unlock()
		return
	}
	i.gone = true
	delete(d.images, i.key)
	d.mu.Unlock()
	d.list.remove(i.key)
	d.config.Chains.Drop(i.chain)
	if err := d.forgetConfig(i.manifest); err != nil {
		d.config.Log.Warn("cannot remove the kept config of an image", "image", i.name, "err", err)
	}
}

func (d *Directory) isGone(i *image) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return i.gone
}

// add adds an image that has a place: first to the list on the disk, so that the next daemon holds
// the image's chain.
func (d *Directory) add(k key) (*image, error) {
	err := d.list.add(k)
	if err == nil {
		d.config.Chains.Hold(k.chain)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i := &image{key: k, used: time.Now(), user: d.added[k]}
	delete(d.added, k)
	if err != nil {
		return nil, err
	}
	d.images[k] = i
	return i, nil
}

var (
	errTimeout = errors.New("its tree was not mounted in time")
	errClosed  = errors.New("the node stops")
)
