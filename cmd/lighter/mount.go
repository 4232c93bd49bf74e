package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lighter/format/chunk"
	"lighter/node"
)

// mountRoots is where mounts without a running node have their roots.
const mountRoots = "/var/lib/lighter-mounts"

func mountCommand() *cobra.Command {
	var flags hubFlags
	var platform string
	config := node.DefaultConfig()
	cmd := &cobra.Command{
		Use:   "mount [flags] NAME DIR",
		Short: "Mount an image's tree, read-only, without containerd",
		Long: `Mount an image's tree at DIR, read-only. The command returns when it is mounted.

If a node with that --root runs here, it mounts the image from its own hub and
shares its cache. Otherwise a small node is started for this mount alone, with a
cache of its own, and ends at "lighter unmount DIR".`,
		Example: "  lighter mount physics/root:6.32 /mnt\n  ls /mnt\n  lighter unmount /mnt",
		Args:    exactArgs("NAME", "DIR"),
	}
	flags.add(cmd)
	root := rootFlag(cmd)
	cmd.Flags().StringVar(&platform, "platform", "", "which `OS/ARCH[/VARIANT]`, if the image has several")
	cmd.Flags().StringSliceVar(&config.HubKeys, "hub-key", nil, "the hub's public `KEY`; needed for a hub that is not on this machine")
	cmd.Flags().Var(&config.CacheSize, "cache-size", "the most that a cache of its own takes on the disk")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := mountPoint(args[1])
		if err != nil {
			return err
		}
		control := node.NewControl(*root)
		if !node.Running(*root) {
			config.Hub, config.Scope = flags.options.URL, flags.options.Scope
			config.PlainHTTP, config.CAFile = flags.options.PlainHTTP, flags.options.CAFile
			config.Root, config.Address = mountRoot(dir), ""
			if err := startNode(cmd.Context(), config); err != nil {
				return errors.Join(err, os.RemoveAll(config.Root))
			}
			control = node.NewControl(config.Root)
		}
		err = control.Mount(cmd.Context(), args[0], platform, dir)
		if err != nil && config.Root == mountRoot(dir) {
			err = errors.Join(err, end(context.WithoutCancel(cmd.Context()), control, config.Root))
		}
		return err
	}
	return cmd
}

func unmountCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "unmount [flags] DIR",
		Short:   "Undo a mount",
		Example: "  lighter unmount /mnt",
		Args:    exactArgs("DIR"),
	}
	root := rootFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := filepath.Abs(args[0])
		if err != nil {
			return usageError{err}
		}
		own := node.NewControl(mountRoot(dir))
		err = own.Unmount(cmd.Context(), dir)
		if err == nil {
			return end(cmd.Context(), own, mountRoot(dir))
		}
		if !errors.Is(err, node.ErrNoDaemon) {
			return err
		}
		err = node.NewControl(*root).Unmount(cmd.Context(), dir)
		if errors.Is(err, node.ErrNoDaemon) {
			return fmt.Errorf("lighter has mounted nothing at %s", dir)
		}
		return err
	}
	return cmd
}

// end ends the node that served one mount, and removes what it kept.
func end(ctx context.Context, control *node.Control, root string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := control.Stop(ctx); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

func mountPoint(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", usageError{err}
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", dir)
	}
	if err != nil {
		return "", usageError{err}
	}
	return dir, nil
}

// mountRoot is the root of the node that serves the mount at dir alone.
func mountRoot(dir string) string {
	return filepath.Join(mountRoots, chunk.Sum([]byte(dir)).Short())
}

// startNode starts a node in the background and returns when it serves.
func startNode(ctx context.Context, config node.Config) error {
	if os.Geteuid() != 0 {
		return errors.New("mounting needs root (try: sudo lighter mount ...)")
	}
	if err := os.MkdirAll(config.Root, 0o700); err != nil {
		return err
	}
	file := filepath.Join(config.Root, "node.toml")
	if err := writeConfig(file, config); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(config.Root, "node.log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "node", "--config", file)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a node for the mount: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for range 300 {
		select {
		case <-ended:
			return fmt.Errorf("the node for the mount ended: %s", lastLine(log.Name()))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
		if node.Running(config.Root) {
			return nil
		}
	}
	return fmt.Errorf("the node for the mount does not answer; its log is %s", log.Name())
}

func lastLine(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, 64<<10))
	if err != nil || len(b) == 0 {
		return "it said nothing"
	}
	end := len(b)
	for end > 0 && b[end-1] == '\n' {
		end--
	}
	start := end
	for start > 0 && b[start-1] != '\n' {
		start--
	}
	return string(b[start:end])
}
