package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/deploy"
	"lighter/install"
	"lighter/install/kubernetes"
	"lighter/install/kubernetes/agent"
	"lighter/node"
)

// forPod has the flags of the pods that install and remove Lighter.
type forPod struct {
	node, pod, host, config, listen, taint, socket string

	cri   bool
	every time.Duration
}

func podFlags(cmd *cobra.Command) *forPod {
	p := &forPod{}
	f := cmd.Flags()
	f.StringVar(&p.node, "node-name", os.Getenv("NODE_NAME"), "`NAME` of this node (default: $NODE_NAME)")
	f.StringVar(&p.pod, "pod-uid", os.Getenv("POD_UID"), "`UID` of this pod (default: $POD_UID)")
	f.StringVar(&p.host, "host", "/host", "the machine's root `DIR` in this pod")
	f.StringVar(&p.listen, "listen", "", "`ADDRESS` of /readyz and /healthz, as HOST:PORT (default: none)")
	f.StringVar(&p.socket, "containerd", "", "`SOCKET` of the kubelet's containerd (default: it is looked for)")
	f.DurationVar(&p.every, "every", 30*time.Second, "`TIME` between two examinations of the node")
	return p
}

func installKubernetesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubernetes [flags]",
		Short: "Install Lighter on the Kubernetes node that runs this pod",
		Long: `Install Lighter on the Kubernetes node that runs this pod, and keep the node's label and
condition true. It is the process of the daemon set in deploy/kubernetes. On a machine
without a cluster, use lighter install systemd and lighter install containerd.

The service of the machine carries the data, not the pod: containers do not notice that
the pod ends or is replaced. The command may be repeated at any time.`,
		Example: "  kubectl apply -k deploy/kubernetes\n  lighter install kubernetes --host /host --node-name worker-1",
		Args:    command.Exactly(),
	}
	p := podFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&p.config, "config", deploy.NodeConfig, "the node's configuration `FILE`, which the machine gets")
	f.StringVar(&p.taint, "taint", agent.DefaultTaint, "`KEY` of the taint that is removed when the node serves")
	f.BoolVar(&p.cri, "cri", true, "use the node for the kubelet's pulls")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, err := os.ReadFile(p.config)
		if err != nil {
			return command.Usage(fmt.Errorf("read the configuration: %w", err))
		}
		// The rest is checked on the machine, which has the files that the configuration names, and
		// may have learned the hub's keys.
		config := node.DefaultConfig()
		if err := decodeConfig(text, &config); err != nil {
			return command.Usage(fmt.Errorf("configuration %s: %w", p.config, err))
		}
		flags := []string{fmt.Sprintf("--cri=%t", p.cri)}
		return p.run(cmd.Context(), &agent.Child{Config: text, Flags: flags}, (*agent.Agent).Run)
	}
	return cmd
}

func uninstallKubernetesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubernetes [flags]",
		Short: "Remove Lighter from the Kubernetes node that runs this pod",
		Long: `Remove Lighter from the Kubernetes node that runs this pod. It is the process of the
daemon set in deploy/kubernetes/uninstall. First the kubelet's pulls get their previous
snapshotter. Containers that use Lighter run on; the node's condition names them. When
the last one is gone, the machine removes the rest by itself.

--wait waits, from a pod whose account may list nodes, until each node has only the last
step before it: its machine removes the rest when the pod of this daemon set is gone.`,
		Example: "  kubectl apply -k deploy/kubernetes/uninstall\n  lighter uninstall kubernetes --wait --timeout 10m",
		Args:    command.Exactly(),
	}
	p := podFlags(cmd)
	f := cmd.Flags()
	purge := f.Bool("purge", false, "remove the node's directory, too: its cache")
	wait := f.Bool("wait", false, "wait until all nodes have handed the removal over to their machines")
	timeout := f.Duration("timeout", 5*time.Minute, "with --wait: for this `TIME`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !*wait {
			return p.run(cmd.Context(), &agent.Child{Purge: *purge}, (*agent.Agent).Remove)
		}
		api, err := agent.InCluster()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		if err := agent.Await(ctx, api, time.Second); err != nil {
			return err
		}
		fmt.Printf("no node has the label %s: each machine removes the rest when its pod of the daemon set is gone "+
			"(journalctl -u lighter-uninstall)\n", agent.InstalledLabel)
		return nil
	}
	return cmd
}

// run runs an agent in this pod. When it has done its work, the pod idles: a daemon set would start
// it again.
func (p *forPod) run(ctx context.Context, machine *agent.Child, do func(*agent.Agent, context.Context) error) error {
	if p.node == "" {
		return command.Usage(errors.New("--node-name is needed"))
	}
	api, err := agent.InCluster()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := kubernetes.Resident(); err != nil {
		log.Warn("without the node of Lighter, this program may wait for its own image", "err", err)
	}
	machine.Root, machine.Log = p.host, log
	if p.socket != "" {
		machine.Flags = append(machine.Flags, "--containerd="+p.socket)
	}
	a := &agent.Agent{API: api, Node: p.node, Pod: p.pod, Host: p.host, Machine: machine, Taint: p.taint, Log: log,
		Every: p.every}
	if p.listen != "" {
		listener, err := net.Listen("tcp", p.listen)
		if err != nil {
			return err
		}
		server := &http.Server{Handler: a.Handler(), ReadHeaderTimeout: 5 * time.Second}
		defer server.Close()
		go func() { _ = server.Serve(listener) }() // it ends with this function
	}
	if err := do(a, ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// decodeNode reads a node's configuration, and checks it.
func decodeNode(text []byte) (node.Config, error) {
	config := node.DefaultConfig()
	err := decodeConfig(text, &config)
	if err == nil {
		err = config.Check()
	}
	if err == nil {
		err = config.CheckHubs()
	}
	return config, err
}

// installHostCommand and uninstallHostCommand are for the pods alone, which run them below the
// machine's root directory.

func hostCommand(parent, short string) (*cobra.Command, *kubernetes.Host) {
	h := &kubernetes.Host{Machine: install.Machine{System: "/"}, Program: "/proc/self/exe", Decode: decodeNode}
	cmd := &cobra.Command{
		Use:     agent.HostCommand + " [flags]",
		Short:   short,
		Example: "  pgrep -af 'lighter " + parent + " " + agent.HostCommand + "'",
		Hidden:  true,
		Args:    command.Exactly(),
	}
	cmd.Flags().StringVar(&h.Socket, "containerd", "", "`SOCKET` of the kubelet's containerd")
	cmd.Flags().BoolVar(&h.CRI, "cri", true, "use the node for the kubelet's pulls")
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error { return kubernetes.Resident() }
	return cmd, h
}

// printResult prints the result of an operation on the machine. The exit code says whether it has
// failed, too.
func printResult(r kubernetes.Result, err error) error {
	if err != nil {
		r.Fail(err)
	}
	return errors.Join(err, printJSON(os.Stdout, r))
}

func installHostCommand() *cobra.Command {
	cmd, h := hostCommand("install", "Install Lighter on this machine; `lighter install kubernetes` starts it")
	cmd.Flags().BoolVar(&h.Again, "again", false, "install only what the machine has lost")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if h.Config, err = io.ReadAll(cmd.InOrStdin()); err != nil {
			return err
		}
		return printResult(h.Install(cmd.Context()))
	}
	return cmd
}

func uninstallHostCommand() *cobra.Command {
	cmd, h := hostCommand("uninstall", "Remove Lighter from this machine; `lighter uninstall kubernetes` starts it")
	f := cmd.Flags()
	own := f.String("own-pod", "", "`UID` of the pod that asks")
	handOver := f.Bool("hand-over", false, "start a service that removes Lighter when nothing uses it")
	unused := f.Bool("unused", false, "remove Lighter when nothing uses it")
	purge := f.Bool("purge", false, "remove the node's directory, too")
	f.StringVar(&h.Root, "root", "", "the node's `DIR`, when its configuration is gone")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *handOver:
			args := []string{"uninstall", agent.HostCommand, "--unused", fmt.Sprintf("--purge=%t", *purge),
				"--containerd=" + h.Socket}
			return printResult(h.HandOver(cmd.Context(), args...))
		case *unused:
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			return printResult(h.RemoveUnused(cmd.Context(), *purge, 5*time.Second, log))
		}
		return printResult(h.Withdraw(cmd.Context(), *own))
	}
	return cmd
}
