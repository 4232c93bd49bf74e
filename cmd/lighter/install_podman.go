package main

import (
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/install"
	"lighter/install/podman"
	"lighter/node"
	"lighter/node/doctor"
)

// podmanTarget gives cmd the flags of the target podman.
func podmanTarget(cmd *cobra.Command) (*podman.Target, func() (install.Target, error)) {
	t := &podman.Target{Machine: install.Machine{System: "/"}, Node: node.DefaultConfig()}
	load := nodeConfigFlag(cmd, &t.Node)
	f := cmd.Flags()
	f.StringVar(&t.Config, "config", podman.DefaultConfig, "the tools' configuration `FILE`")
	f.StringVar(&t.Node.Root, "root", t.Node.Root, "the node's directory (`DIR`)")
	return t, func() (install.Target, error) {
		if err := load(); err != nil {
			return nil, err
		}
		t.Node = doctor.Effective(cmd.Context(), t.Node)
		return t, absolute(&t.Config)
	}
}

func installPodmanCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "podman [flags]",
		Short: "Make Podman, Buildah, Skopeo and CRI-O read the node's image store",
		Long: `Make Podman, Buildah, Skopeo and CRI-O read the node's image store, in which they find
the images of the hub without pulling them. The command adds the store to
additionalimagestores in storage.conf. The node needs the setting image_store, and must
have run with it. Users whose own storage.conf replaces the system's are named.

With --pull-through, pulls from the registries of --registry go through the hub first, and
to the registry if the hub does not answer. The command writes a file of its own in
/etc/containers/registries.conf.d. It needs no node, and no image store.

Each run writes what its flags say: repeat --pull-through to keep it.`,
		Example: `  sudo lighter install podman --dry-run
  sudo lighter install podman
  sudo lighter install podman --config /etc/containers/storage.conf --root /data/lighter
  sudo lighter install podman --pull-through https://hub.example.org:7070 --registry docker.io`,
		Args: command.Exactly(),
	}
	t, target := podmanTarget(cmd)
	check := pullThroughFlags(cmd, &t.Hub)
	return carryOut(cmd, new(install.Options), checked(target, check), install.Target.Install)
}

func uninstallPodmanCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "podman [flags]",
		Short: "Undo lighter install podman",
		Long: `Take the node's image store out of storage.conf, and the hub out of registries.conf.d.
Images and containers that need a layer of the store have to be removed first: without
the store, every command of the tools would fail. The command names them.`,
		Example: "  sudo lighter uninstall podman --dry-run\n  sudo lighter uninstall podman",
		Args:    command.Exactly(),
	}
	t, target := podmanTarget(cmd)
	cmd.Flags().BoolVar(&t.Force, "force", false, "do not look for images and containers that need the store")
	return carryOut(cmd, new(install.Options), target, install.Target.Uninstall)
}
