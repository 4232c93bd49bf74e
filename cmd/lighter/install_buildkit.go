package main

import (
	"errors"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/install"
	"lighter/install/buildkit"
	"lighter/node"
)

// buildKitTarget gives cmd the flags of the target buildkit.
func buildKitTarget(cmd *cobra.Command) func() (install.Target, error) {
	t := &buildkit.Target{Machine: install.Machine{System: "/"}}
	config := node.DefaultConfig()
	load := nodeConfigFlag(cmd, &config)
	f := cmd.Flags()
	f.StringVar(&t.Config, "config", "", "buildkitd's configuration `FILE` (default: the one that it has read)")
	f.StringVar(&t.Socket, "buildkit", buildkit.DefaultSocket, "buildkitd's Unix `SOCKET`")
	f.StringVar(&config.Root, "root", config.Root, "the node's directory (`DIR`)")
	return func() (install.Target, error) {
		err := errors.Join(load(), absolute(&t.Config))
		t.Root = config.Root
		return t, err
	}
}

func installBuildKitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "buildkit [flags]",
		Short: "Make buildkitd build on lazy images",
		Long: `Make buildkitd on this machine build on lazy images: the OCI worker gets the node's
snapshotter, under the name stargz, because BuildKit leaves layers only to names that it
knows. The command edits buildkitd's configuration in place, between marks. Docker's own
builder is not concerned.

Run builds end when buildkitd is restarted. The build cache of the previous snapshotter
stays on the disk, and is not used meanwhile.`,
		Example: `  sudo lighter install buildkit --dry-run
  sudo lighter install buildkit --restart
  sudo lighter install buildkit --config /srv/buildkitd.toml --buildkit /run/build.sock`,
		Args: command.Exactly(),
	}
	return carryOut(cmd, restartFlag(cmd), buildKitTarget(cmd), install.Target.Install)
}

func uninstallBuildKitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "buildkit [flags]",
		Short: "Undo lighter install buildkit",
		Long: `Take the lines of "lighter install buildkit" out of buildkitd's configuration. The rest of
the file stays, also what was changed since. buildkitd gets its previous snapshotter,
with that snapshotter's build cache.`,
		Example: "  buildctl prune --all && sudo lighter uninstall buildkit --restart",
		Args:    command.Exactly(),
	}
	return carryOut(cmd, restartFlag(cmd), buildKitTarget(cmd), install.Target.Uninstall)
}
