package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/hub"
	"lighter/hub/rootdir"
	"lighter/wire"
)

func hubKeyCommand() *cobra.Command {
	cmd := group("key", "Show, add, remove and replace the keys that a hub signs with",
		`Show, add, remove and replace the keys that a hub signs with.
A hub makes a key at its first start, and nodes pin its public half. To replace it,
in this order:

  1. lighter hub key add     and restart the hub: it signs with both keys
  2. lighter mirror          again, for each mirror, with --hub-key for both keys
  3. hub_keys of each node   both keys, and restart the node; wait until
                             "lighter status" shows that no signature is missing
  4. lighter hub key remove  the old key, restart the hub, and make mirrors again
  5. hub_keys of each node   the new key alone, and restart the node

Containers keep running. docs/operating.md explains the procedure. Each domain of the hub
(--domain) has keys of its own.

If the keys are lost, make another one (add), and let the hub use it (use).

These commands change the hub's directory, and "use" its catalog. A running hub keeps
using the keys that it was started with.`,
		`  lighter hub key show --root /srv/lighter
  lighter hub key add --root /srv/lighter
  lighter hub key show --root /srv/lighter --domain team
  lighter hub key remove --root /srv/lighter ed25519:...`)
	cmd.AddCommand(hubKeyShowCommand(), hubKeyAddCommand(), hubKeyRemoveCommand(), hubKeyUseCommand())
	return cmd
}

// keyPlace is the domain whose keys a command shows or changes.
type keyPlace struct {
	config hub.Config
	domain string
	root   string // the domain's directory
}

// onKeys gives a command the flags that name the directory of a hub's domain, and runs it with the
// directory from the flags or the hub's configuration.
func onKeys(cmd *cobra.Command, run func(ctx context.Context, at keyPlace, args []string) error) *cobra.Command {
	config, file, domain := hub.DefaultConfig(), "", wire.DefaultDomain
	cmd.Flags().StringVar(&domain, "domain", domain, "the `DOMAIN` of the hub whose keys these are")
	cmd.Flags().StringVar(&config.Root, "root", config.Root, "the hub's directory (`DIR`)")
	cmd.Flags().StringVar(&file, "config", "", "the hub's configuration `FILE`, which may name the directory")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := effective(cmd, file, &config); err != nil {
			return err
		}
		if err := wire.CheckDomain(domain); err != nil {
			return command.Usage(err)
		}
		root := rootdir.Domain(config.Root, domain)
		switch _, err := os.Stat(root); {
		case !errors.Is(err, fs.ErrNotExist):
		case domain == wire.DefaultDomain:
			return fmt.Errorf("there is no directory %s: name the hub's with --root or --config", root)
		default:
			return fmt.Errorf("the hub in %s has no domain %q: the hub makes it when it is started with a table "+
				"[[domain]] of that name in its configuration", config.Root, domain)
		}
		return run(cmd.Context(), keyPlace{config, domain, root}, args)
	}
	return cmd
}

func hubKeyShowCommand() *cobra.Command {
	return onKeys(&cobra.Command{
		Use: "show [flags]", Short: "Print the public keys, the oldest first",
		Example: `  lighter hub key show --config /etc/lighter/hub.toml
  lighter hub key show --config /etc/lighter/hub.toml --domain team`,
		Args: command.Exactly(),
	}, func(_ context.Context, at keyPlace, _ []string) error {
		keys, err := hub.Keys(at.root)
		for _, key := range keys {
			fmt.Println(key)
		}
		return err
	})
}

func hubKeyAddCommand() *cobra.Command {
	return onKeys(&cobra.Command{
		Use: "add [flags]", Short: "Make one more key, which the hub also uses from its next start on",
		Long: `Make one more key, and print its public half. From its next start on the hub signs all
its statements with this key, too.`,
		Example: "  lighter hub key add --root /srv/lighter",
		Args:    command.Exactly(),
	}, func(_ context.Context, at keyPlace, _ []string) error {
		key, err := hub.AddKey(at.root)
		if err == nil {
			fmt.Println(key)
		}
		return err
	})
}

func hubKeyRemoveCommand() *cobra.Command {
	return onKeys(&cobra.Command{
		Use: "remove [flags] KEY", Short: "Remove a key, which the hub no longer uses from its next start on",
		Long: `Remove the key with this public half. From its next start on the hub does not sign with
it. Nodes that have pinned no other key of the hub then refuse its statements. The only
key cannot be removed.`,
		Example: "  lighter hub key remove --root /srv/lighter ed25519:...",
		Args:    command.Exactly("KEY"),
	}, func(_ context.Context, at keyPlace, args []string) error { return hub.RemoveKey(at.root, args[0]) })
}

func hubKeyUseCommand() *cobra.Command {
	return onKeys(&cobra.Command{
		Use: "use [flags]", Short: "Let a hub use keys of which none has signed before",
		Long: `Let the hub sign with the keys that it has now, from its next start on, though none of
them has signed before. Otherwise it refuses to start: its key file may be that of another
hub. This is for a hub whose keys are lost, or were all replaced at once because they
were stolen. Nodes refuse the hub's statements until they have pinned the new keys.`,
		Example: `  lighter hub key add --config /etc/lighter/hub.toml
  lighter hub key use --config /etc/lighter/hub.toml`,
		Args: command.Exactly(),
	}, func(ctx context.Context, at keyPlace, _ []string) error {
		return hub.UseKeys(ctx, at.config, at.domain)
	})
}
