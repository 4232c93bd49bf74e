// Package standalone mounts images whether a node runs or not (`lighter mount`). If a node runs,
// that node mounts the image. Otherwise each mount gets a node of its own, with a cache of its own,
// and `lighter unmount` ends that node.
package standalone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pelletier/go-toml/v2"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/node"
	"lighter/node/binds"
	"lighter/node/control"
	"lighter/node/keeper"
	"lighter/node/mount"
)

const (
	startTimeout  = 15 * time.Second      // until a mount's own node answers
	stopTimeout   = time.Minute           // until that node has ended
	startInterval = 20 * time.Millisecond // pause between two attempts to reach that node
)

// Mounts mounts images, with or without a running node.
type Mounts struct {
	Root    string // root of the node that mounts images if it runs
	Own     string // directory for the roots of nodes that serve a single mount
	Program string // the lighter command, which runs these nodes
}

// Mount mounts the tree of an image at dir, read-only. If no node runs, it starts one with config
// for this mount. If Mount fails, or ctx is done, it leaves nothing behind.
func (m Mounts) Mount(ctx context.Context, config node.Config, name, platform, dir string) error {
	return m.mount(ctx, config, dir, func(c *control.Client, dir string) error {
		return c.Mount(ctx, name, platform, dir)
	})
}

// Start does what Mount does, for a container, and returns the image's config. The error wraps
// binds.ErrNoImage if the hub has no image of that name.
func (m Mounts) Start(ctx context.Context, config node.Config, name, platform,
	dir string) (started binds.Started, err error) {
	err = m.mount(ctx, config, dir, func(c *control.Client, dir string) (err error) {
		started, err = c.Start(ctx, name, platform, dir)
		return err
	})
	return started, err
}

// mount calls ask with the client of the node that mounts an image at dir.
func (m Mounts) mount(ctx context.Context, config node.Config, dir string,
	ask func(c *control.Client, dir string) error) error {
	dir, err := binds.RealDir(dir)
	if err != nil {
		return err
	}
	if control.Running(m.Root) {
		return ask(control.New(m.Root), dir)
	}
	if os.Geteuid() != 0 {
		return errors.New("mounting needs root (try: sudo lighter mount ...)")
	}
	config.Root, config.Address = m.root(dir), ""
	if err := m.start(ctx, config, dir); err != nil {
		return err
	}
	if err := ask(control.New(config.Root), dir); err != nil {
		return errors.Join(err, m.stop(context.WithoutCancel(ctx), config.Root))
	}
	return nil
}

// Unmount undoes Mount and Start, even if the node that served the mount has ended. If a node was
// started for dir, and the process that started it was killed before anything was mounted, Unmount
// ends that node.
func (m Mounts) Unmount(ctx context.Context, dir string) error {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	own := m.root(dir)
	err := control.New(own).Unmount(ctx, dir)
	if err == nil || errors.Is(err, control.ErrNotMounted) {
		return m.stop(ctx, own)
	}
	if !errors.Is(err, control.ErrNoDaemon) {
		return err
	}
	if _, err := os.Stat(own); err == nil {
		return m.removeDead(ctx, own, dir)
	}
	err = control.New(m.Root).Unmount(ctx, dir)
	if !errors.Is(err, control.ErrNoDaemon) {
		return err
	}
	found, err := mount.Unbind(node.RealRoot(m.Root), dir)
	if err == nil && !found {
		err = fmt.Errorf("unmount %s: %w", dir, control.ErrNotMounted)
	}
	return err
}

// root returns the root of the node that serves only the mount at dir.
func (m Mounts) root(dir string) string {
	return filepath.Join(node.RealRoot(m.Own), chunk.Sum([]byte(dir)).Short())
}

// lock keeps other processes from making and removing roots below m.Own until unlock is called.
func (m Mounts) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(m.Own, 0o700); err != nil {
		return nil, err
	}
	if unlock, err = durable.LockDir(ctx, m.Own); err != nil {
		return nil, fmt.Errorf("wait for another mount to start: %w", err)
	}
	return unlock, nil
}

// start starts a node in the background and returns when it answers.
func (m Mounts) start(ctx context.Context, config node.Config, dir string) (err error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return fmt.Errorf("start a node for the mount: %w", err)
	}
	defer unlock()
	if control.Running(config.Root) {
		return binds.ErrTaken(dir)
	}
	if err := remove(config.Root, dir); err != nil { // left by a node that was killed
		return err
	}
	if err := m.startIn(ctx, config); err != nil {
		return errors.Join(fmt.Errorf("start a node for the mount: %w", err), remove(config.Root, dir))
	}
	return nil
}

// startIn makes the root with the node's configuration, and runs the node.
func (m Mounts) startIn(ctx context.Context, config node.Config) error {
	text, err := toml.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.Mkdir(config.Root, 0o700); err != nil {
		return err
	}
	file := filepath.Join(config.Root, "node.toml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	return m.run(ctx, config.Root, file, filepath.Join(config.Root, "node.log"))
}

// run starts the program, and leaves it running once its node answers. If the node does not answer
// in time, run kills it.
func (m Mounts) run(ctx context.Context, root, config, log string) error {
	output, err := os.Create(log)
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := exec.Command(m.Program, "node", "--config", config)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Env = keeper.WithoutManager(os.Environ())        // this process may belong to a service
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // against interrupts from the terminal
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout,
		fmt.Errorf("the node does not answer within %s", startTimeout))
	defer cancel()
	for !control.Running(root) {
		select {
		case <-ended:
			return errors.New(lastLine(log))
		case <-ctx.Done():
			_ = cmd.Process.Kill() // an error means that it has just ended
			<-ended
			return context.Cause(ctx)
		case <-time.After(startInterval):
		}
	}
	return nil
}

// stop ends the node that served one mount, and removes its root.
func (m Mounts) stop(ctx context.Context, root string) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := control.New(root).Stop(ctx); err != nil && !errors.Is(err, control.ErrNoDaemon) {
		return err
	}
	return m.removeDead(ctx, root, "")
}

// removeDead removes a root whose node has ended. Unless dir is empty, it also unmounts the root's
// tree from dir.
func (m Mounts) removeDead(ctx context.Context, root, dir string) error {
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if control.Running(root) {
		return nil // another mount at the same directory has started
	}
	return remove(root, dir)
}

// remove removes a root that no node uses. Before that it unmounts the root's tree from dir, unless
// dir is empty.
func remove(root, dir string) error {
	if dir != "" {
		if _, err := mount.Unbind(root, dir); err != nil {
			return err
		}
	}
	if err := (keeper.Process{Root: root}).Drop(context.Background()); err != nil { // bounded by its timeout
		return err
	}
	return mount.Abandon(root)
}

// lastLine returns the last line of a log.
func lastLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return cmp.Or(strings.TrimPrefix(lines[len(lines)-1], "lighter: "), "the node ended without output")
}
