package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"lighter/cmd/command"
	"lighter/node"
	"lighter/node/control"
	"lighter/node/ondemand"
)

const (
	// trialReady is how long the trial's node may take to begin.
	trialReady = 30 * time.Second
	// trialName is what the trial's container is called.
	trialName = "trial"
	// trialCache is what its cache may hold.
	trialCache = 2 << 30
	// trialFiles is where a trial mounts a tmpfs for what the image writes and for its root. Users
	// of the sandbox cannot pass the hub's directory. Every machine has this one, and a trial its
	// own.
	trialFiles = "/dev/shm"
)

// trialCommand is for `lighter hub` alone, which starts it in namespaces of its
// own: whatever it leaves goes with them.
func trialCommand() *cobra.Command {
	var t trial
	cmd := &cobra.Command{
		Use:     "trial DIR",
		Short:   "Start an image once and record that; `lighter hub --trace-run` starts it",
		Example: "  pgrep -af 'lighter trial'",
		Hidden:  true,
		Args:    command.Exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			t.dir = args[0]
			if os.Getpid() != 1 {
				return command.Usage(errors.New("a trial is started by a hub"))
			}
			var image v1.ImageConfig
			if err := json.NewDecoder(os.Stdin).Decode(&image); err != nil {
				return fmt.Errorf("understand the image's config: %w", err)
			}
			return t.run(cmd.Context(), image)
		},
	}
	cmd.Flags().StringVar(&t.hub, "hub", "", "the hub's `URL`")
	cmd.Flags().StringVar(&t.name, "name", "", "the image's `NAME`")
	cmd.Flags().StringVar(&t.platform, "platform", "", "its `OS/ARCH`")
	cmd.Flags().StringVar(&t.tree, "tree", "", "its `TREE`")
	cmd.Flags().StringVar(&t.cgroup, "cgroup", "", "the control group (`NAME`) to start it in")
	return cmd
}

// trial is one start of an image.
type trial struct {
	dir                       string
	hub, name, platform, tree string
	cgroup                    string
}

func (t *trial) path(name string) string { return filepath.Join(t.dir, name) }

func (t *trial) run(ctx context.Context, image v1.ImageConfig) error {
	if err := t.prepare(); err != nil {
		return fmt.Errorf("prepare the sandbox: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	control, err := t.startNode(ctx)
	if err != nil {
		return err
	}
	if err := control.Mount(ctx, t.name, t.platform, t.path("first")); err != nil {
		return err
	}
	// What is read of the image to find these two is not recorded.
	user, err := userOf(t.path("first"), image.User)
	if err != nil {
		return err
	}
	dir, err := workDir(t.path("first"), image.WorkingDir)
	if err != nil {
		return err
	}
	box := sandbox{args: append(append([]string{}, image.Entrypoint...), image.Cmd...), env: image.Env, dir: dir, user: user,
		cgroup: t.cgroup, swap: countsSwap(cgroupRoot)}
	waits, over := make(chan struct{}), make(chan error, 1)
	var recorded ondemand.Progress
	go func() {
		over <- control.Record(ctx, t.tree, false, func(at ondemand.Progress) {
			if recorded = at; at.Reads == 0 && !at.Over {
				select {
				case <-waits:
				default:
					close(waits)
				}
			}
		})
	}()
	select {
	case <-waits:
	case err := <-over:
		return errors.Join(errors.New("nothing was recorded"), err)
	}
	// It was mounted once more for this.
	if err := control.Mount(ctx, t.name, t.platform, t.path("lower")); err != nil {
		return err
	}
	ended, err := t.start(ctx, box)
	if err != nil {
		return err
	}
	var said error
	select {
	case err = <-over:
		said = t.stop(ctx, ended)
	case said = <-ended: // servers do not
		select {
		case err = <-over:
		case <-time.After(trialOver):
			err = errors.New("hardly anything was read")
		}
	}
	if err != nil {
		return errors.Join(err, said)
	}
	fmt.Printf("%d reads of %d bytes\n", recorded.Reads, recorded.Bytes)
	return nil
}

// prepare makes the namespaces the trial's own.
func (t *trial) prepare() error {
	unix.Umask(0o022) // users of the sandbox pass what is made
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	for _, name := range []string{"first", "lower", "mapped", "bundle"} {
		if err := os.MkdirAll(t.path(name), 0o755); err != nil {
			return err
		}
	}
	return unix.Mount("tmpfs", trialFiles, "tmpfs", unix.MS_NODEV, "size=512m,mode=0711")
}

// startNode runs a node in this process.
func (t *trial) startNode(ctx context.Context) (*control.Client, error) {
	config := node.DefaultConfig()
	config.Root, config.Address, config.Hubs, config.CacheSize, config.Record = t.path("node"), "", []string{t.hub}, trialCache, false
	ready, ended := make(chan struct{}), make(chan error, 1)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	go func() { ended <- node.Run(ctx, config, log, func() { close(ready) }) }()
	select {
	case <-ready:
		return control.New(config.Root), nil
	case err := <-ended:
		return nil, fmt.Errorf("start a node: %w", err)
	case <-time.After(trialReady):
		return nil, errors.New("start a node: it does not get ready")
	}
}

// start starts the image in a sandbox.
func (t *trial) start(ctx context.Context, box sandbox) (ended chan error, err error) {
	if err := mapOwners(t.path("lower"), t.path("mapped")); err != nil {
		return nil, fmt.Errorf("map the image's files into the sandbox's user namespace: %w", err)
	}
	upper, work := filepath.Join(trialFiles, "upper"), filepath.Join(trialFiles, "work")
	for _, dir := range []string{upper, work, sandboxRoot} {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, firstSandboxID, firstSandboxID)); err != nil {
			return nil, fmt.Errorf("prepare the sandbox: %w", err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", t.path("mapped"), upper, work)
	if err := unix.Mount("overlay", sandboxRoot, "overlay", unix.MS_NODEV, options); err != nil {
		return nil, fmt.Errorf("mount the sandbox: %w", err)
	}
	spec, err := json.Marshal(box.spec())
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(t.path("bundle/config.json"), spec, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "runc", "--root", t.path("runc"), "run", "--bundle", t.path("bundle"), trialName)
	cmd.Stderr = &tail{}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the image: %w", err)
	}
	ended = make(chan error, 1)
	go func() {
		err := cmd.Wait()
		if err != nil {
			err = fmt.Errorf("the image ended with: %w: %s", err, cmd.Stderr)
		}
		ended <- err
	}()
	return ended, nil
}

const (
	// trialStop is how long what was started may take to end.
	trialStop = 10 * time.Second
	// trialOver is how long after that its recording may take to end.
	trialOver = 30 * time.Second
)

// stop ends what was started. What does not end goes with the namespaces.
func (t *trial) stop(ctx context.Context, ended chan error) error {
	ctx, cancel := context.WithTimeout(ctx, trialStop)
	defer cancel()
	_ = exec.CommandContext(ctx, "runc", "--root", t.path("runc"), "kill", trialName, "KILL").Run() // it may just have ended
	select {
	case said := <-ended:
		return said
	case <-ctx.Done():
		return errors.New("the image does not end")
	}
}

// tail keeps the end of what is written to it.
type tail struct{ b []byte }

var _ io.Writer = (*tail)(nil)

// Write keeps what fits.
func (t *tail) Write(b []byte) (int, error) {
	const most = 500
	t.b = append(t.b, b...)
	t.b = t.b[max(0, len(t.b)-most):]
	return len(b), nil
}

// String returns what is kept.
func (t *tail) String() string { return string(t.b) }
