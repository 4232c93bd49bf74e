package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"lighter/hub"
)

func hubKeyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Show, add and remove the keys that a hub signs with",
		Long: `Show, add and remove the keys that a hub signs with.
A hub makes a key at its first start, and nodes pin its public half. To replace it,
in this order:

  1. lighter hub key add     and restart the hub: it signs with both keys
  2. lighter mirror          again, for each mirror, with --hub-key for both keys
  3. hub_keys of each node   both keys, and restart the node; wait until
                             "lighter status" shows that no signature is missing
  4. lighter hub key remove  the old key, restart the hub, and make mirrors again
  5. hub_keys of each node   the new key alone, and restart the node

Containers run on meanwhile. docs/operating.md says more.

These commands change the hub's directory. A running hub goes on with the keys that
it was started with.`,
		Example: `  lighter hub key show --root /srv/lighter
  lighter hub key add --root /srv/lighter
  lighter hub key remove --root /srv/lighter ed25519:...`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(hubKeyShowCommand(), hubKeyAddCommand(), hubKeyRemoveCommand())
	return cmd
}

// hubRoot is where a hub keeps its keys, as its flags or its configuration say.
type hubRoot struct {
	config hub.Config
	file   string
}

func (r *hubRoot) add(cmd *cobra.Command) {
	r.config = hub.DefaultConfig()
	cmd.Flags().StringVar(&r.config.Root, "root", r.config.Root, "where the hub keeps everything (`DIR`)")
	cmd.Flags().StringVar(&r.file, "config", "", "the hub's configuration `FILE`, which may say so")
}

func (r *hubRoot) dir(cmd *cobra.Command) (string, error) {
	err := effective(cmd, r.file, &r.config)
	return r.config.Root, err
}

func hubKeyShowCommand() *cobra.Command {
	var root hubRoot
	cmd := &cobra.Command{
		Use: "show [flags]", Short: "Print the public keys, the oldest first",
		Example: "  lighter hub key show --config /etc/lighter/hub.toml",
		Args:    exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := root.dir(cmd)
			if err != nil {
				return err
			}
			keys, err := hub.Keys(dir)
			for _, key := range keys {
				fmt.Println(key)
			}
			return err
		},
	}
	root.add(cmd)
	return cmd
}

func hubKeyAddCommand() *cobra.Command {
	var root hubRoot
	cmd := &cobra.Command{
		Use: "add [flags]", Short: "Make one more key, with which the hub signs too from its next start on",
		Long: `Make one more key, and print its public half. From its next start on the hub signs with
it too, also what it has signed before.`,
		Example: "  lighter hub key add --root /srv/lighter",
		Args:    exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := root.dir(cmd)
			if err != nil {
				return err
			}
			key, err := hub.AddKey(dir)
			if err == nil {
				fmt.Println(key)
			}
			return err
		},
	}
	root.add(cmd)
	return cmd
}

func hubKeyRemoveCommand() *cobra.Command {
	var root hubRoot
	cmd := &cobra.Command{
		Use: "remove [flags] KEY", Short: "Remove a key, with which the hub does not sign from its next start on",
		Long: `Remove the key with this public half. From its next start on the hub does not sign with
it; nodes that have pinned no other key of the hub refuse what it says. The only key
cannot be removed.`,
		Example: "  lighter hub key remove --root /srv/lighter ed25519:...",
		Args:    exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := root.dir(cmd)
			if err != nil {
				return err
			}
			return hub.RemoveKey(dir, args[0])
		},
	}
	root.add(cmd)
	return cmd
}
