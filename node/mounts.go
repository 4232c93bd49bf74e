package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/node/keeper"
	"lighter/node/mount"
)

// Mounts mounts images for people, whether a node runs here or not.
type Mounts struct {
	Root    string // of the node that mounts them if it runs
	Own     string // otherwise: where each mount has a node of its own, which ends with it
	Program string // the lighter command, which runs such a node
}

const (
	// ownStart is how long a node of its own may take until it answers.
	ownStart = 15 * time.Second
	// ownStop is how long it may take to end.
	ownStop = time.Minute
)

// Mount mounts the tree of an image at dir, read-only. config is for a node of
// its own. What it began it undoes when it fails, or ctx ends.
func (m Mounts) Mount(ctx context.Context, config Config, name, platform, dir string) error {
	dir, err := realDir(dir)
	if err != nil {
		return err
	}
	if Running(m.Root) {
		return NewControl(m.Root).Mount(ctx, name, platform, dir)
	}
	if os.Geteuid() != 0 {
		return errors.New("mounting needs root (try: sudo lighter mount ...)")
	}
	config.Root, config.Address = m.root(dir), ""
	if err := m.start(ctx, config, dir); err != nil {
		return err
	}
	if err := NewControl(config.Root).Mount(ctx, name, platform, dir); err != nil {
		return errors.Join(err, m.end(context.WithoutCancel(ctx), config.Root))
	}
	return nil
}

// Unmount undoes Mount, also when the node that served it is gone.
func (m Mounts) Unmount(ctx context.Context, dir string) error {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	own := m.root(dir)
	err := NewControl(own).Unmount(ctx, dir)
	if err == nil {
		return m.end(ctx, own)
	}
	if !errors.Is(err, ErrNoDaemon) {
		return err
	}
	if _, err := os.Stat(own); err == nil {
		return m.abandon(ctx, own, dir)
	}
	err = NewControl(m.Root).Unmount(ctx, dir)
	if !errors.Is(err, ErrNoDaemon) {
		return err
	}
	found, err := mount.Unbind(realRoot(m.Root), dir)
	if err == nil && !found {
		err = fmt.Errorf("unmount %s: %w", dir, ErrNotMounted)
	}
	return err
}

// root returns the root of the node that serves the mount at dir alone.
func (m Mounts) root(dir string) string {
	return filepath.Join(realRoot(m.Own), chunk.Sum([]byte(dir)).Short())
}

// realRoot is the name of a root by which mounts are known.
func realRoot(root string) string {
	if real, err := filepath.EvalSymlinks(root); err == nil {
		return real
	}
	return root
}

// turn keeps others from making and removing roots below m.Own until end is called.
func (m Mounts) turn(ctx context.Context) (end func(), err error) {
	if err := os.MkdirAll(m.Own, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.Open(m.Own)
	if err != nil {
		return nil, err
	}
	if err := flock(ctx, lock, unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for another mount to start: %w", err), lock.Close())
	}
	return func() { lock.Close() }, nil
}

// start starts a node in the background and returns when it answers.
func (m Mounts) start(ctx context.Context, config Config, dir string) (err error) {
	end, err := m.turn(ctx)
	if err != nil {
		return fmt.Errorf("start a node for the mount: %w", err)
	}
	defer end()
	if Running(config.Root) {
		return errTaken(dir)
	}
	if err := remove(config.Root, dir); err != nil { // of a node that was killed
		return err
	}
	log, file := filepath.Join(config.Root, "node.log"), filepath.Join(config.Root, "node.toml")
	text, err := toml.Marshal(config)
	if err == nil {
		err = os.Mkdir(config.Root, 0o700)
	}
	if err != nil {
		return fmt.Errorf("start a node for the mount: %w", err)
	}
	if err = os.WriteFile(file, text, 0o600); err == nil {
		err = m.run(ctx, config.Root, file, log)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("start a node for the mount: %w", err), remove(config.Root, dir))
	}
	return nil
}

// run starts the program and leaves it alone once it answers. If it does not, it
// is ended.
func (m Mounts) run(ctx context.Context, root, config, log string) error {
	said, err := os.Create(log)
	if err != nil {
		return err
	}
	defer said.Close()
	cmd := exec.Command(m.Program, "node", "--config", config)
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Env = keeper.WithoutManager(os.Environ())        // whose service we may be part of
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt from the terminal is for us alone
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeoutCause(ctx, ownStart, fmt.Errorf("it does not answer within %s", ownStart))
	defer cancel()
	for !Running(root) {
		select {
		case <-ended:
			return errors.New(lastLine(log))
		case <-ctx.Done():
			_ = cmd.Process.Kill() // it may just have ended
			<-ended
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// end ends the node that served one mount, and removes what it kept.
func (m Mounts) end(ctx context.Context, root string) error {
	ctx, cancel := context.WithTimeout(ctx, ownStop)
	defer cancel()
	if err := NewControl(root).Stop(ctx); err != nil && !errors.Is(err, ErrNoDaemon) {
		return err
	}
	return m.abandon(ctx, root, "")
}

// abandon removes a root whose node has ended, and the mount at dir.
func (m Mounts) abandon(ctx context.Context, root, dir string) error {
	end, err := m.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	if Running(root) {
		return nil // somebody has begun anew
	}
	return remove(root, dir)
}

// remove removes a root without a node, and the tree of it that is mounted at
// dir.
func remove(root, dir string) error {
	if dir != "" {
		if _, err := mount.Unbind(root, dir); err != nil {
			return err
		}
	}
	if err := (keeper.Process{Root: root}).Drop(context.Background()); err != nil { // which takes a moment, and is bounded
		return err
	}
	return mount.Abandon(root)
}

// lastLine returns what a log ends with.
func lastLine(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, 64<<10))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return cmp.Or(strings.TrimPrefix(lines[len(lines)-1], "lighter: "), "it ended and said nothing")
}
