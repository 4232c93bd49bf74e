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
	"lighter/deploy"
	"lighter/install"
	"lighter/install/containerd"
	"lighter/install/docker"
	"lighter/install/pullthrough"
	"lighter/node"
	"lighter/node/doctor"
)

// plan is a method of install.Target.
type plan func(target install.Target, ctx context.Context) (*install.Plan, error)

func installCommand() *cobra.Command {
	cmd := group("install", "Make a program of this machine use Lighter",
		`Make a program of this machine use Lighter. The command finds the program and its files,
shows what it changes, keeps everything else of a file (also comments and order), lets
the program itself check the result, and undoes the change if the program does not
come back. Nothing is restarted without --restart. "lighter uninstall" undoes it exactly.`,
		"  sudo lighter install systemd --hub https://hub.example.org --hub-key ed25519:... --restart\n"+
			"  sudo lighter install containerd --dry-run\n  sudo lighter install containerd --restart\n"+
			"  sudo lighter install docker --restart")
	cmd.AddCommand(installBuildKitCommand(), installContainerdCommand(), installDockerCommand(),
		installPodmanCommand(), installSystemdCommand(), installKubernetesCommand(), installHostCommand())
	return cmd
}

func uninstallCommand() *cobra.Command {
	cmd := group("uninstall", "Undo lighter install",
		`Undo "lighter install". If nobody has changed a file since, it is byte for byte what it
was. Otherwise only Lighter's lines are taken out. The command refuses while containers
use lazy images, and names them.`,
		"  sudo lighter uninstall containerd --restart\n  sudo lighter uninstall systemd")
	cmd.AddCommand(uninstallBuildKitCommand(), uninstallContainerdCommand(), uninstallDockerCommand(),
		uninstallPodmanCommand(), uninstallSystemdCommand(), uninstallKubernetesCommand(), uninstallHostCommand())
	return cmd
}

// restartFlag gives cmd the flag --restart.
func restartFlag(cmd *cobra.Command) *install.Options {
	o := new(install.Options)
	cmd.Flags().BoolVar(&o.Restart, "restart", false, "restart the service that has to be restarted")
	return o
}

// carryOut gives cmd the flags that all targets share, and makes it carry out the target's plan.
func carryOut(cmd *cobra.Command, o *install.Options, target func() (install.Target, error), plan plan) *cobra.Command {
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only show what would change")
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t, err := target()
		if err != nil {
			return err
		}
		var report install.Report
		p, err := plan(t, cmd.Context())
		if err == nil {
			report, err = install.Machine{System: "/"}.Apply(cmd.Context(), p, *o)
		}
		if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
			err = fmt.Errorf("%w: run this as root (try sudo)", err)
		}
		refused := (*install.Refused)(nil)
		if errors.As(err, &refused) && refused.Lines != "" && !*asJSON {
			fmt.Print("to be inserted by hand:\n\n" + refused.Lines + "\n")
		}
		switch {
		case p == nil:
			return err
		case *asJSON:
			return errors.Join(err, printJSON(os.Stdout, report))
		}
		printReport(report)
		return err
	}
	return cmd
}

// printReport prints what was done, and what the user has to do.
func printReport(r install.Report) {
	for _, found := range r.Found {
		fmt.Println(found)
	}
	for _, f := range r.Files {
		fmt.Print(f.Diff)
	}
	if len(r.Files) == 0 {
		fmt.Println("no file has to be changed")
	}
	for _, done := range r.Done {
		fmt.Println("done: " + done)
	}
	for _, next := range r.Next {
		fmt.Println("next: " + next)
	}
	for _, note := range r.Notes {
		fmt.Println("note: " + note)
	}
}

// nodeConfigFlag gives cmd the flag --node-config. load reads that file into config, apart from
// what other flags of cmd have set.
func nodeConfigFlag(cmd *cobra.Command, config *node.Config) (load func() error) {
	file := cmd.Flags().String("node-config", "",
		"the node's configuration `FILE` (default: "+deploy.NodeConfig+", if it exists)")
	return func() error {
		if _, err := os.Stat(deploy.NodeConfig); err == nil && *file == "" {
			*file = deploy.NodeConfig
		}
		return loadConfig(cmd, *file, config)
	}
}

// absolute makes paths absolute that the user has given relative to the working directory. Empty
// ones stay.
func absolute(paths ...*string) error {
	for _, path := range paths {
		if *path == "" {
			continue
		}
		whole, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = whole
	}
	return nil
}

// containerdTarget gives cmd the flags of the target containerd.
func containerdTarget(cmd *cobra.Command) (*containerd.Target, func() (install.Target, error)) {
	t := &containerd.Target{Machine: install.Machine{System: "/"}, Node: node.DefaultConfig()}
	load := nodeConfigFlag(cmd, &t.Node)
	f := cmd.Flags()
	f.StringVar(&t.Config, "config", "", "containerd's configuration `FILE` (default: the one that it has read)")
	f.StringVar(&t.Node.Containerd, "containerd", t.Node.Containerd, "containerd's Unix `SOCKET`")
	f.StringVar(&t.Node.Root, "root", t.Node.Root, "the node's directory (`DIR`)")
	f.StringVar(&t.Node.Address, "address", t.Node.Address, "the node's Unix `SOCKET` for containerd")
	f.StringVar(&t.Hosts, "hosts-dir", pullthrough.ContainerdDir, "the `DIR` with containerd's files HOST/hosts.toml")
	return t, func() (install.Target, error) {
		if err := load(); err != nil {
			return nil, err
		}
		t.Node = doctor.Effective(cmd.Context(), t.Node)
		if t.Node.Address == "" {
			return nil, command.Usage(errors.New("the node has no address for containerd: set it in its configuration"))
		}
		return t, absolute(&t.Config, &t.Hosts)
	}
}

func installContainerdCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "containerd [flags]",
		Short: "Make containerd use the node as a snapshotter",
		Long: `Make containerd (1.6 or later) use the node as a snapshotter named lighter. The command
takes the node's address and root from the running node, or from its configuration.

containerd 2.0 and later, with a pattern in "imports", gets a file of its own, which it
merges with the others. Otherwise the configuration is edited in place: new lines are
put between marks, and replaced lines are kept as comments there.

The kubelet's pulls keep their snapshotter without --cri, because a change concerns every
pod of the machine. Clients that name a snapshotter (ctr, nerdctl) need no --cri.

With --differ (containerd 1.7.4 or later) the node makes the layers of docker commit,
nerdctl commit, ctr snapshots diff and builds, and reads nothing else of a lazy image.
But while no node runs, clients that unpack by themselves (Docker, nerdctl, local pulls
of CRI) then cannot pull, whatever their snapshotter is.

With --pull-through, pulls from the registries of --registry go through the hub first, and
to the registry if the hub does not answer. containerd reads this from HOST/hosts.toml in
the directory config_path of its configuration, at each pull.

Each run writes what its flags say: repeat --cri, --differ and --pull-through to keep them.`,
		Example: `  sudo lighter install containerd --dry-run
  sudo lighter install containerd --restart
  sudo lighter install containerd --cri --restart
  sudo lighter install containerd --differ --restart
  sudo lighter install containerd --pull-through https://hub.example.org:7070 --registry docker.io
  sudo lighter install containerd --config /etc/containerd/config.toml --root /data/lighter`,
		Args: command.Exactly(),
	}
	t, target := containerdTarget(cmd)
	check := pullThroughFlags(cmd, &t.Hub)
	cmd.Flags().BoolVar(&t.CRI, "cri", false, "use the node for the kubelet's pulls, too")
	cmd.Flags().BoolVar(&t.Differ, "differ", false,
		"let the node make the layers of commits and builds; Docker, nerdctl and local pulls of CRI then need the node")
	return carryOut(cmd, restartFlag(cmd), checked(target, check), install.Target.Install)
}

// pullThroughFlags gives cmd the flags about a hub that is asked before registries.
func pullThroughFlags(cmd *cobra.Command, hub *pullthrough.Hub) (check func() error) {
	f := cmd.Flags()
	f.StringVar(&hub.URL, "pull-through", "", "ask the hub at `URL` before the registries of --registry")
	f.StringArrayVar(&hub.Registries, "registry", []string{"docker.io"},
		"a registry, `HOST`[:PORT], that the hub reads for clients (pull_through); may be repeated")
	return func() error {
		if hub.URL == "" && f.Changed("registry") {
			return errors.New("--registry: give --pull-through, too")
		}
		return hub.Check()
	}
}

// checked returns a target after its flags were checked.
func checked(target func() (install.Target, error), check func() error) func() (install.Target, error) {
	return func() (install.Target, error) {
		if err := check(); err != nil {
			return nil, command.Usage(err)
		}
		return target()
	}
}

func uninstallContainerdCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "containerd [flags]",
		Short: "Undo lighter install containerd",
		Long: `Take the lines of "lighter install containerd" out of containerd's configuration. The
rest of the files stays, also what was changed since. Containers that use lazy images
have to be removed first: containerd could not remove them without the snapshotter.`,
		Example: "  sudo lighter uninstall containerd --dry-run\n  sudo lighter uninstall containerd --restart",
		Args:    command.Exactly(),
	}
	t, target := containerdTarget(cmd)
	cmd.Flags().BoolVar(&t.Force, "force", false, "do not look for containers that use lazy images")
	return carryOut(cmd, restartFlag(cmd), target, install.Target.Uninstall)
}

// dockerTarget gives cmd the flags of the target docker.
func dockerTarget(cmd *cobra.Command) (*docker.Target, func() (install.Target, error)) {
	t := &docker.Target{Machine: install.Machine{System: "/"}}
	config := node.DefaultConfig()
	load := nodeConfigFlag(cmd, &config)
	f := cmd.Flags()
	f.StringVar(&t.Config, "config", "", "Docker's configuration `FILE` (default: the one that dockerd reads)")
	f.StringVar(&t.Socket, "docker", doctor.DockerSocket, "Docker's Unix `SOCKET`")
	f.StringVar(&config.Containerd, "containerd", config.Containerd, "containerd's Unix `SOCKET`")
	f.BoolVar(&t.Force, "force", false, "change the storage driver although containers run")
	return t, func() (install.Target, error) {
		err := errors.Join(load(), absolute(&t.Config))
		t.Containerd, t.Blobs = config.Containerd, config.Blobs
		return t, err
	}
}

func installDockerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "docker [flags]",
		Short: "Make Docker use the node",
		Long: `Make Docker (24 or later) keep its images in containerd, and use the node there. Run "lighter
install containerd" first. The command sets two keys of Docker's configuration, usually
/etc/docker/daemon.json, and lets dockerd check it. A file beside it, with the suffix
.lighter, records how this is undone.

Docker does not show images and containers of another storage driver. They stay on the
disk, and are back after "lighter uninstall docker". No container may run meanwhile.

With --pull-through, Docker asks the hub before Docker Hub: it is the first one of
registry-mirrors. Docker asks mirrors for no other registry, and does not say which one it
means. So the URL has a host name of its own, one of the hub's docker_names.

Each run writes what its flags say: repeat --pull-through to keep it.`,
		Example: "  sudo lighter install docker --dry-run\n  sudo lighter install docker --restart\n" +
			"  sudo lighter install docker --pull-through https://docker-mirror.example.org:7070 --restart",
		Args: command.Exactly(),
	}
	t, target := dockerTarget(cmd)
	cmd.Flags().StringVar(&t.Hub, "pull-through", "", "ask the hub at `URL` before Docker Hub")
	check := func() error {
		if t.Hub == "" {
			return nil
		}
		return pullthrough.CheckURL(t.Hub)
	}
	return carryOut(cmd, restartFlag(cmd), checked(target, check), install.Target.Install)
}

func uninstallDockerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "docker [flags]",
		Short: "Undo lighter install docker",
		Long: `Take out what "lighter install docker" has set in Docker's configuration. The rest of the
file stays, also what was changed since. Docker gets its previous storage driver, with
that driver's images and containers, and does not show those of the node any more.`,
		Example: "  sudo lighter uninstall docker --dry-run\n  sudo lighter uninstall docker --restart",
		Args:    command.Exactly(),
	}
	_, target := dockerTarget(cmd)
	return carryOut(cmd, restartFlag(cmd), target, install.Target.Uninstall)
}
