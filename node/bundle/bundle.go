// Package bundle makes OCI bundles: directories from which runc, crun or Slurm run a container of
// an image. A bundle has
//
//	config.json         the runtime's configuration (package spec)
//	rootfs/             the root file system: an overlay, on which the container may write
//	lighter/image/      the image, mounted by a node, or pulled as a whole
//	lighter/upper/ work/  what the container has written
//	lighter/state.json  which node mounts the image
//
// A node mounts the image if its hub knows the name. Otherwise all layers are pulled and unpacked,
// if the options allow it. If Make fails, nothing is left. Whatever a process that was killed has
// left, Remove removes: it needs only state.json. Remove deletes no file while anything is mounted
// below the bundle.
//
// Only root can make bundles, because only root can mount file systems. In a user namespace, the
// image comes from an image store that a node keeps, and the mounts end with the namespace. Two
// processes must not make or remove the same bundle at the same time.
package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"lighter/durable"
	"lighter/node"
	"lighter/node/binds"
	"lighter/node/control"
	"lighter/node/mount"
	"lighter/node/spec"
	"lighter/node/standalone"
	"lighter/wire"
)

// Pull says when all layers of an image are pulled.
type Pull string

// Values of Pull.
const (
	PullMissing Pull = "missing" // if the hub has no image of that name
	PullAlways  Pull = "always"  // without asking a hub
	PullNever   Pull = "never"
)

// CheckPull returns an error unless the value is known.
func CheckPull(p Pull) error {
	if p != PullMissing && p != PullAlways && p != PullNever {
		return fmt.Errorf("pull %q is neither %s nor %s nor %s", p, PullMissing, PullAlways, PullNever)
	}
	return nil
}

// Options say which bundle to make. All fields from Image to Spec are the user's choice.
type Options struct {
	Image     string
	Platform  string // default: this machine's
	Pull      Pull   // default: PullMissing
	PlainHTTP bool   // allow plain HTTP to a registry on another machine
	Spec      spec.Options

	ID     string            // of the container; empty: the runtime chooses its cgroup
	Mounts standalone.Mounts // mounts the image
	Node   node.Config       // of a node that is started for this bundle
	Store  string            // not empty: the image comes from this image store, and Mounts is not used
	Notice func(string)      // gets lines for the user
	// Watch calls pull, and shows the progress that pull reports.
	Watch func(pull func(show func(wire.Progress)) error) error
}

// places are the paths of a bundle's parts.
type places struct{ dir string }

func (p places) own() string    { return filepath.Join(p.dir, "lighter") }
func (p places) image() string  { return filepath.Join(p.own(), "image") }
func (p places) upper() string  { return filepath.Join(p.own(), "upper") }
func (p places) work() string   { return filepath.Join(p.own(), "work") }
func (p places) state() string  { return filepath.Join(p.own(), "state.json") }
func (p places) root() string   { return filepath.Join(p.dir, spec.Root) }
func (p places) config() string { return filepath.Join(p.dir, "config.json") }

// state is what Remove needs to know.
type state struct {
	Image string `json:"image"`
	Node  string `json:"node"`            // root of the node that mounts the image if it runs
	Own   string `json:"own"`             // directory for the root of a node that serves only this bundle
	Store string `json:"store,omitempty"` // as in Options
}

// ErrNotBundle says that a directory is no bundle that this package has made.
var ErrNotBundle = errors.New("it is not a bundle that lighter has made")

// Make makes a bundle in dir: an empty directory, or one that does not exist yet.
func Make(ctx context.Context, dir string, o Options) (err error) {
	if err := checkRoot(); err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	made := os.Mkdir(dir, 0o700)
	if made != nil && !errors.Is(made, os.ErrExist) {
		return fmt.Errorf("make bundle: %w", made)
	}
	defer func() {
		if err != nil && made == nil {
			err = errors.Join(err, os.Remove(dir))
		}
	}()
	if dir, err = binds.RealDir(dir); err != nil {
		return err
	}
	p := places{dir}
	if err := p.prepare(o); err != nil {
		return fmt.Errorf("make bundle %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.remove(context.WithoutCancel(ctx)))
		}
	}()
	config, err := fetch(ctx, p, o)
	if err != nil {
		return err
	}
	if err := p.mount(o.Spec.Rootless); err != nil {
		return err
	}
	config, err = p.makeConfig(ctx, config, o)
	if err != nil {
		return err
	}
	if err := durable.Replace(p.config(), config); err != nil {
		return fmt.Errorf("make bundle %s: %w", dir, err)
	}
	return ctx.Err()
}

// makeConfig returns the runtime's configuration for an image's config.
func (p places) makeConfig(ctx context.Context, config []byte, o Options) ([]byte, error) {
	made, err := spec.New(ctx, config, p.root(), o.ID, o.Spec)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(made, "", "  ")
}

// checkRoot fails unless this process has the rights that bundles need.
func checkRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("a bundle needs root, which mounts its image and its writable layer (try sudo); " +
			"lighter run works for other users, too")
	}
	return nil
}

// prepare makes the directories and the state, or nothing.
func (p places) prepare(o Options) error {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return errors.New("the directory is not empty")
	}
	text, err := json.Marshal(state{Image: o.Image, Node: o.Mounts.Root, Own: o.Mounts.Own, Store: o.Store})
	if err != nil {
		return err
	}
	if err := os.Mkdir(p.own(), 0o700); err != nil {
		return err
	}
	err = durable.Replace(p.state(), text)
	for _, dir := range []string{p.image(), p.upper(), p.work(), p.root()} {
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
	}
	if err != nil {
		err = errors.Join(err, p.clear())
	}
	return err
}

// fetch mounts the image, or pulls it, and returns its config.
func fetch(ctx context.Context, p places, o Options) ([]byte, error) {
	if o.Pull == PullAlways {
		return pull(ctx, p, o)
	}
	if o.Store != "" {
		return p.bindFromStore(o)
	}
	started, err := o.Mounts.Start(ctx, o.Node, o.Image, o.Platform, p.image())
	if errors.Is(err, binds.ErrNoImage) && o.Pull != PullNever {
		return pull(ctx, p, o)
	}
	return started.Config, err
}

// Remove unmounts a bundle and removes what Make has made, and the directory unless it has other
// files. Remove fails while a container runs in the bundle. The error wraps ErrNotBundle if there
// is no bundle.
func Remove(ctx context.Context, dir string) error {
	if err := checkRoot(); err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove bundle %s: %w", dir, ErrNotBundle)
	}
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return err
	}
	if err := (places{real}).remove(ctx); err != nil {
		return err
	}
	err = os.Remove(real)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) { // it has other files, or is a mount point
		return nil
	}
	return err
}

func (p places) remove(ctx context.Context) error {
	made, err := p.read()
	if err != nil {
		return fmt.Errorf("remove bundle %s: %w", p.dir, err)
	}
	if err := p.unmount(); err != nil {
		return err
	}
	if made.Store != "" {
		err = p.unbind()
	} else {
		err = standalone.Mounts{Root: made.Node, Own: made.Own}.Unmount(ctx, p.image())
	}
	if err != nil && !errors.Is(err, control.ErrNotMounted) {
		return err
	}
	return p.clear()
}

// read reads the state. While there is none, nothing is mounted.
func (p places) read() (s state, err error) {
	text, err := os.ReadFile(p.state())
	if errors.Is(err, os.ErrNotExist) {
		return s, ErrNotBundle
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}

// clear removes the bundle's files, unless something is mounted below it.
func (p places) clear() error {
	points, err := mount.Points(p.dir)
	if err == nil && len(points) > 0 && points[0] != p.dir {
		err = fmt.Errorf("%s is still mounted", points[0])
	}
	if err != nil {
		return fmt.Errorf("remove bundle %s: %w", p.dir, err)
	}
	// The state goes last, so that another Remove can continue.
	for _, path := range []string{p.config(), p.root(), p.image(), p.upper(), p.work(), p.own()} {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove bundle %s: %w", p.dir, err)
		}
	}
	return nil
}
