package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node"
	"lighter/node/standalone"
	"lighter/wire"
)

// mountRoots has the root directories of the small nodes that serve a single mount each.
const mountRoots = "/var/lib/lighter-mounts"

func mountCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mount [flags] NAME DIR",
		Short: "Mount an image's tree, read-only, without containerd",
		Long: `Mount an image's tree at DIR, read-only. The command returns when it is mounted.
Its set-user-ID programs and device nodes have no effect.

If a node with this --root runs on the machine, that node mounts the image, with its own
hub and cache. Otherwise the command starts a small node for this mount alone, with a
cache of its own. "lighter unmount DIR" ends that node.`,
		Example: "  lighter mount physics/root:6.32 /mnt\n  ls /mnt\n  lighter unmount /mnt",
		Args:    command.Exactly("NAME", "DIR"),
	}
	config := ownNodeFlags(cmd)
	root := rootFlag(cmd)
	platform := cmd.Flags().String("platform", "", "the `OS/ARCH[/VARIANT]` to mount, if the image has several")
	return run(cmd, mountsOf(root), func(ctx context.Context, mounts standalone.Mounts, args []string) error {
		dir, err := existingDir(args[1])
		if err != nil {
			return command.Usage(err)
		}
		if _, err := wire.ParseName(args[0]); err != nil {
			return command.Usage(err)
		}
		return mounts.Mount(ctx, config(), args[0], *platform, dir)
	})
}

// ownNodeFlags gives cmd the flags of a node that it starts if none runs, and returns a function
// that returns the configuration of that node.
func ownNodeFlags(cmd *cobra.Command) func() node.Config {
	config, options := node.DefaultConfig(), hubFlags(cmd)
	cmd.Flags().StringSliceVar(&config.HubKeys, "hub-key", nil,
		"the hub's public `KEY`; needed for a hub that is not on this machine")
	cmd.Flags().TextVar(&config.CacheSize, "cache-size", config.CacheSize,
		"the largest size of the mount's own cache (`SIZE`)")
	return func() node.Config {
		config.Hubs, config.Domain = []string{options.URL}, options.Domain
		config.PlainHTTP, config.CAFile = options.PlainHTTP, options.CAFile
		return config
	}
}

func unmountCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "unmount [flags] DIR",
		Short:   "Undo a mount",
		Example: "  lighter unmount /mnt",
		Args:    command.Exactly("DIR"),
	}
	return run(cmd, mountsOf(rootFlag(cmd)), func(ctx context.Context, mounts standalone.Mounts, args []string) error {
		dir, err := filepath.Abs(args[0])
		if err != nil {
			return command.Usage(err)
		}
		return mounts.Unmount(ctx, dir)
	})
}

// mountsOf returns a function that returns the mounts of the node with this root directory.
func mountsOf(root *string) func() (standalone.Mounts, error) {
	return func() (standalone.Mounts, error) {
		self, err := os.Executable()
		if err != nil {
			return standalone.Mounts{}, fmt.Errorf("find this program: %w", err)
		}
		return standalone.Mounts{Root: *root, Own: mountRoots, Program: self}, nil
	}
}

func existingDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = errors.New(dir + " does not exist: make it first")
	case err == nil && !info.IsDir():
		err = errors.New(dir + " is not a directory")
	}
	return dir, err
}
