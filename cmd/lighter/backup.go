package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/hub"
	"lighter/hub/backup"
	"lighter/wire"
)

func backupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup [flags] DIR",
		Short: "Copy a hub to a directory while it runs",
		Long: `Copy a hub to a directory, while it runs or not: for each of its domains, a snapshot of the
catalog, the objects that the snapshot names, the registry and the signing keys.
Run it on the hub's machine, as the hub's user.

If DIR is on the hub's file system, it gets hard links to the objects: copy DIR to another disk
afterwards. If DIR has an earlier backup of this hub, the objects and blobs that it has are not
copied again, and what the hub no longer has is deleted from DIR. If DIR has a backup of another
hub, nothing is copied. While a domain is copied, the hub deletes no objects and no blobs of it.

DIR has the signing keys in the file hub.key of each domain (mode 0600): any reader of that file
can sign as the hub.

If the hub's configuration names a catalog or a bucket, copy the hub with the tools of the
database and bucket, in a script that "lighter backup hold" runs: docs/operating.md has the
steps.`,
		Example: `  lighter backup --root /srv/lighter /backup/lighter
  lighter restore --root /srv/again /backup/lighter`,
		Args: command.Exactly("DIR"),
	}
	config, file := hub.DefaultConfig(), ""
	asJSON := cmd.Flags().Bool("json", false, "print the result as JSON")
	cmd.Flags().StringVar(&config.Root, "root", config.Root, "the hub's directory (`DIR`)")
	cmd.Flags().StringVar(&file, "config", "", "the hub's configuration `FILE`, which may name the directory")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := effective(cmd, file, &config); err != nil {
			return err
		}
		if config.Catalog != "" || config.Bucket != "" {
			return command.Usage(errors.New("the hub's configuration names a catalog or a bucket, which this " +
				"command does not copy: copy the hub in a script, the catalog first (lighter backup hold -- SCRIPT)"))
		}
		r, err := watch(func(show func(wire.Progress)) (backup.Result, error) {
			return backup.Make(cmd.Context(), config.Root, args[0], show)
		})
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), r)
		}
		fmt.Printf("%s is complete: %d objects, %d of them new\n", args[0], r.Objects, r.Copied)
		return nil
	}
	cmd.AddCommand(backupHoldCommand())
	return cmd
}

// holdEnd is the time from SIGTERM to SIGKILL for COMMAND, if the hold is lost or `backup hold` is
// interrupted.
const holdEnd = 10 * time.Second

func backupHoldCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hold [flags] -- COMMAND [ARG]...",
		Short: "Run a command that copies a hub, while the hub deletes nothing",
		Long: `Run a command that copies a hub with the tools of its database and bucket. While it runs, no
process of the hub deletes objects or blobs of any domain; everything else goes on. The command
has to copy the catalog first, and then the bucket: docs/operating.md has an example.

The exit code is not 0 if COMMAND fails, or if the hub may have deleted objects meanwhile: the
copy may then lack objects, and has to be made again. This machine must reach the database.`,
		Example: `  lighter backup hold --config /etc/lighter/hub.toml -- /etc/lighter/copy-hub`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return command.Usage(fmt.Errorf("COMMAND is missing (see %s --help)", cmd.CommandPath()))
			}
			return nil
		},
	}
	config, file := hub.DefaultConfig(), ""
	cmd.Flags().SetInterspersed(false) // further flags are the command's
	cmd.Flags().StringVar(&config.Root, "root", config.Root, "the hub's directory (`DIR`), if the catalog is there")
	cmd.Flags().StringVar(&file, "config", "", "the hub's configuration `FILE`, which names the catalog")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := effective(cmd, file, &config); err != nil {
			return err
		}
		catalogs, err := config.Catalogs()
		if err != nil {
			return err
		}
		return backup.WhileHeld(cmd.Context(), catalogs, func(ctx context.Context) error {
			copying := exec.CommandContext(ctx, args[0], args[1:]...)
			copying.Stdin, copying.Stdout, copying.Stderr = os.Stdin, os.Stdout, os.Stderr
			copying.Cancel = func() error { return copying.Process.Signal(syscall.SIGTERM) }
			copying.WaitDelay = holdEnd
			if err := copying.Run(); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return nil
		})
	}
	return cmd
}

func restoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore [flags] DIR",
		Short: "Make the directory of a hub from a backup",
		Long: `Make the directory of a hub from a backup that "lighter backup" has made. The hub's directory
must be empty, or not exist. Run it as the hub's user. Start the hub afterwards, and run
"lighter fsck --deep --repair" for each domain (--domain).`,
		Example: "  lighter restore --root /srv/lighter /backup/lighter",
		Args:    command.Exactly("DIR"),
	}
	root := cmd.Flags().String("root", hub.DefaultConfig().Root, "the hub's directory (`DIR`)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := backup.Restore(cmd.Context(), args[0], *root); err != nil {
			return err
		}
		fmt.Printf("%s is restored: start the hub, and run lighter fsck --deep --repair for each domain (--domain)\n",
			*root)
		return nil
	}
	return cmd
}
