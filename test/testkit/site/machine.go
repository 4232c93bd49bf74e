package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"lighter/node/keeper"
)

// Names of the two snapshotters of the machine's containerd.
const (
	Overlayfs = "overlayfs"
	Lighter   = "lighter"
)

// Machine runs containers: a network namespace at the end of the link, with containerd and a node.
type Machine struct {
	site       *Site
	dir        string
	holder     *process // holds the network namespace
	node       *process
	peer       *process // the snapshotter of Site.SetPeer
	containerd *process
	namespace  string       // containerd's namespace; also the name of the cgroup above the containers'
	containers atomic.Int64 // number of the IDs that were given to containers and to Exec's processes
}

// newMachine makes the link and the machine's network.
func (s *Site) newMachine(ctx context.Context) (*Machine, error) {
	m := &Machine{site: s, dir: filepath.Join(s.Dir, "machine"), namespace: filepath.Base(enclosure)}
	if err := os.MkdirAll(m.dir, 0o711); err != nil {
		return nil, err
	}
	var err error
	if m.holder, err = s.newNetwork(ctx, "network"); err != nil {
		return nil, errors.Join(err, m.close())
	}
	if err := s.makeLink(ctx, m); err != nil {
		return nil, errors.Join(fmt.Errorf("make the link: %w", err), m.close())
	}
	return m, nil
}

// inside returns the command line that runs line in the machine's network namespace. `ip netns
// exec` does not fit: it makes a mount namespace, so the test would not see the node's mounts.
func (m *Machine) inside(line string) string { return insideOf(m.holder, line) }

// start starts the node and the peer, and then containerd, which uses them as snapshotters.
func (m *Machine) start(ctx context.Context) error {
	if err := os.MkdirAll(m.path("tmp"), 0o755); err != nil {
		return err
	}
	if m.site.options.Lighter != "" {
		if err := m.StartNode(ctx); err != nil {
			return err
		}
	}
	if err := m.startPeer(ctx); err != nil {
		return err
	}
	text := m.containerdConfig()
	if m.site.options.Config != "" {
		var err error
		if text, err = m.completeConfig(m.site.options.Config); err != nil {
			return err
		}
	}
	if err := os.WriteFile(m.ContainerdConfig(), []byte(text), 0o644); err != nil {
		return err
	}
	return m.StartContainerd(ctx)
}

// StartContainerd starts containerd again after StopContainerd. Each start of the machine also
// starts containerd.
func (m *Machine) StartContainerd(ctx context.Context) error {
	argv := m.Inside(m.ContainerdCommand()...)
	var err error
	if m.containerd, err = m.site.startProcess("containerd", argv); err != nil {
		return err
	}
	return m.containerd.await(ctx, func() error {
		_, err := m.Ctr(ctx, "version")
		return err
	})
}

// RestartContainerd kills containerd and starts it again. Containers keep running: their shims are
// separate processes.
func (m *Machine) RestartContainerd(ctx context.Context) error {
	m.containerd.kill()
	return m.StartContainerd(ctx)
}

// StopContainerd stops containerd with SIGTERM. Containers keep running.
func (m *Machine) StopContainerd() error { return m.containerd.stop() }

// ContainerdCommand returns containerd's command line, for a manager of services.
func (m *Machine) ContainerdCommand() []string {
	return []string{m.tool("containerd"), "--config", m.ContainerdConfig()}
}

// ContainerdConfig returns the path of containerd's configuration.
func (m *Machine) ContainerdConfig() string { return m.path("containerd.toml") }

// StartNode starts the node again after StopNode or KillNode, with additional flags. Each start of
// the machine also starts the node.
func (m *Machine) StartNode(ctx context.Context, more ...string) error {
	return m.LaunchNode(ctx, Launch{Args: more})
}

// Launch has the options of one start of the node. The zero value is the usual start.
type Launch struct {
	Lighter string     // another binary, for example of an older version
	Wrap    []string   // a command, with its arguments, that executes the node's command line
	Env     []string   // additional environment variables
	Files   []*os.File // inherited files, from descriptor 3 on
	Args    []string   // additional flags
}

// LaunchNode does what StartNode does, with other options.
func (m *Machine) LaunchNode(ctx context.Context, l Launch) error {
	s := m.site
	argv := append(strings.Fields(m.inside("")), l.Wrap...)
	key := cmp.Or(s.options.HubKey, s.Hub.Key)
	hubs := s.options.Hubs
	if hubs == nil {
		hubs = []string{s.Hub.URL}
	}
	// --disk-free-low 0: a full host disk must not make the node evict chunks.
	argv = append(argv, cmp.Or(l.Lighter, s.options.Node, s.options.Lighter), "node", "--root", m.NodeRoot(),
		"--address", m.nodeSocket(),
		"--plain-http", "--disk-free-low", "0", "--record-delay", "0")
	if len(hubs) > 0 {
		argv = append(argv, "--hub", strings.Join(hubs, ","), "--hub-key", key)
	}
	if l.Lighter == "" && s.options.Node == "" { // an older binary may not know this flag
		argv = append(argv, "--containerd", m.ContainerdSocket())
	}
	if s.options.RemapIDs {
		argv = append(argv, "--remap-ids")
	}
	if s.options.Domain != "" {
		argv = append(argv, "--domain", s.options.Domain)
	}
	if s.options.Unlabelled {
		argv = append(argv, "--trust", "chain")
	}
	var err error
	if m.node, err = s.startProcessWith("node", slices.Concat(argv, s.options.NodeArgs, l.Args), l.Env,
		l.Files); err != nil {
		return err
	}
	if err := m.node.await(ctx, dial("unix", m.nodeSocket())); err != nil {
		return err
	}
	return m.node.await(ctx, dial("unix", filepath.Join(m.NodeRoot(), "control.sock"))) // for later commands
}

// StopNode stops the node with SIGTERM.
func (m *Machine) StopNode() error { return m.node.stop() }

// KillNode kills the node with SIGKILL, like a crash.
func (m *Machine) KillNode() { m.node.kill() }

// NodeRuns reports whether the node's process runs.
func (m *Machine) NodeRuns() bool { return !m.node.hasEnded() }

// NodePID returns the process ID of the node that was started last.
func (m *Machine) NodePID() int { return m.node.pid() }

// NodeRoot returns the node's root directory.
func (m *Machine) NodeRoot() string { return cmp.Or(m.site.options.NodeRoot, m.path("node")) }

// NodeLog returns the path of the node's log.
func (m *Machine) NodeLog() string { return m.node.log }

// Namespace returns the name of the namespace of containerd that Ctr uses.
func (m *Machine) Namespace() string { return m.namespace }

// ContainerdSocket returns the path of containerd's socket.
func (m *Machine) ContainerdSocket() string { return m.path("containerd.sock") }

func (m *Machine) nodeSocket() string      { return m.path("lighter.sock") }
func (m *Machine) path(name string) string { return filepath.Join(m.dir, name) }
func (m *Machine) bundle(id string) string {
	return m.path("state/io.containerd.runtime.v2.task/" + m.namespace + "/" + id)
}
func (m *Machine) nextContainer() (id string) {
	return "c" + strconv.FormatInt(m.containers.Add(1), 10)
}

// containerdConfig returns a configuration of containerd with only the plugins that images and
// containers need, and all state below the machine's directory.
func (m *Machine) containerdConfig() string {
	config := fmt.Sprintf(`version = 4
root = %q
state = %q
imports = []
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
  "io.containerd.internal.v1.opt", "io.containerd.image-verifier.v1.bindir", "io.containerd.internal.v1.tracing",
  "io.containerd.nri.v1.nri", "io.containerd.podsandbox.controller.v1.cri",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp",
]
[plugins."io.containerd.server.v1.grpc"]
  address = %q
[plugins."io.containerd.server.v1.ttrpc"]
  address = %q
[plugins."io.containerd.transfer.v1.local"]
  max_concurrent_unpacks = %d
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "overlayfs"
  differ = "walking"
%s%s`, m.path("containerd"), m.path("state"), m.ContainerdSocket(), m.ContainerdSocket()+".ttrpc",
		max(m.site.options.Unpacks, 1), m.isolation(), m.peerConfig())
	if m.site.options.Lighter == "" {
		return config
	}
	capabilities := `"rebase"`
	if m.site.options.RemapIDs {
		capabilities += `, "remap-ids"`
	}
	return config + fmt.Sprintf(`[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "lighter"
  differ = "walking"
%s[proxy_plugins.lighter]
  type = "snapshot"
  address = %q
  capabilities = [%s]
  [proxy_plugins.lighter.exports]
    root = %q
    enable_remote_snapshot_annotations = "%t"
`, m.differ(), m.nodeSocket(), capabilities, m.NodeRoot(), !m.site.options.Unlabelled)
}

// differ returns the lines of containerd's configuration about the node's differ.
func (m *Machine) differ() string {
	if !m.site.options.Differ {
		return ""
	}
	return fmt.Sprintf(`[plugins."io.containerd.service.v1.diff-service"]
  default = ["lighter-diff", "walking"]
[proxy_plugins.lighter-diff]
  type = "diff"
  address = %q
`, m.nodeSocket())
}

// Wipe removes all containers, images, snapshots and caches, and starts containerd and the node
// again. It does not remove the node's files below Options.NodeRoot.
func (m *Machine) Wipe(ctx context.Context) error {
	if err := m.stop(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(m.dir); err != nil {
		return fmt.Errorf("wipe the machine: %w", err)
	}
	if err := os.MkdirAll(m.dir, 0o711); err != nil {
		return err
	}
	return m.start(ctx)
}

// Keep saves the machine's disk (images, snapshots and caches, but no containers) under a name for
// Restore, and starts the machine with an empty disk. It replaces a disk that was saved under that
// name. It does not save the node's files below Options.NodeRoot.
func (m *Machine) Keep(ctx context.Context, name string) error {
	if err := m.stop(ctx); err != nil {
		return err
	}
	kept := m.kept(name)
	if err := errors.Join(os.RemoveAll(kept), os.MkdirAll(filepath.Dir(kept), 0o700), os.Rename(m.dir, kept),
		os.MkdirAll(m.dir, 0o711)); err != nil {
		return fmt.Errorf("keep the machine's disk: %w", err)
	}
	return m.start(ctx)
}

// Restore replaces the machine's disk by the one that Keep saved under a name, and starts the
// machine. Each Keep can be restored once.
func (m *Machine) Restore(ctx context.Context, name string) error {
	if _, err := os.Stat(m.kept(name)); err != nil {
		return fmt.Errorf("restore the machine's disk: %w", err)
	}
	if err := m.stop(ctx); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(m.dir), os.Rename(m.kept(name), m.dir)); err != nil {
		return fmt.Errorf("restore the machine's disk: %w", err)
	}
	return m.start(ctx)
}

func (m *Machine) kept(name string) string { return filepath.Join(m.site.Dir, "kept", name) }

// Reboot simulates a restart without shutdown: it ends all processes and mounts of the machine,
// removes its runtime state, and starts it again. Unlike a real crash, it loses no unsynced data.
func (m *Machine) Reboot(ctx context.Context) error {
	pidFiles, err := filepath.Glob(m.bundle("*") + "/init.pid")
	if err != nil {
		return err
	}
	shims, err := processes(m.tool("containerd-shim-runc-v2"), m.ContainerdSocket())
	if err != nil {
		return err
	}
	keepers, err := processes("", "keeper "+m.NodeRoot())
	if err != nil {
		return err
	}
	victims := append(shims, keepers...)
	for _, path := range pidFiles {
		text, err := os.ReadFile(path)
		pid, malformed := strconv.Atoi(strings.TrimSpace(string(text)))
		if err := errors.Join(err, malformed); err != nil {
			return err
		}
		victims = append(victims, pid)
	}
	m.containerd.kill()
	m.node.kill()
	m.peer.kill()
	for _, pid := range victims {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the process may end by itself
	}
	for _, pid := range victims {
		for end := time.Now().Add(stopTimeout); syscall.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return fmt.Errorf("process %d still exists %v after SIGKILL", pid, stopTimeout)
			}
		}
	}
	if err := unmountBelow(m.dir); err != nil {
		return err
	}
	for _, dir := range []string{m.path("state"), "/run/containerd", "/run/runc"} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return m.start(ctx)
}

// stop removes the containers and ends containerd, its shims and the node.
func (m *Machine) stop(ctx context.Context) error {
	var errs []error
	if m.node != nil && m.node.hasEnded() {
		errs = append(errs, m.dropKeeper())
	}
	if m.containerd != nil {
		errs = append(errs, m.removeContainers(ctx), m.containerd.stop())
	}
	errs = append(errs, m.killShims(), unmountBelow(m.path("state")), unmountBelow(m.path("containerd")))
	errs = append(errs, m.node.stop(), m.peer.stop(), unmountBelow(m.path("peer")), m.leftoverMounts(),
		m.dropKeeper(), unmountBelow(m.dir))
	m.containerd, m.node, m.peer = nil, nil, nil
	return errors.Join(errs...)
}

// dropKeeper ends the keeper of a node that has ended: no next node takes over. Otherwise readers
// would wait forever, and so would umount(2) if a read is in flight.
func (m *Machine) dropKeeper() error {
	return keeper.Process{Root: m.NodeRoot()}.Drop(context.Background())
}

// close stops the machine.
func (m *Machine) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(m.stop(ctx), m.holder.stop())
}

// leftoverMounts returns an error for each mount that is left below the machine's directory.
func (m *Machine) leftoverMounts() error {
	var errs []error
	mounts, err := mountsBelow(m.dir)
	for _, mount := range mounts {
		errs = append(errs, fmt.Errorf("the machine left %s mounted", mount))
	}
	return errors.Join(append(errs, err)...)
}

// killShims kills the shims of containers that could not be removed.
func (m *Machine) killShims() error {
	pids, err := processes(m.tool("containerd-shim-runc-v2"), m.ContainerdSocket())
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the shim may just have ended
	}
	return err
}

// Command runs a command in the machine's network and returns its standard output.
func (m *Machine) Command(ctx context.Context, argv ...string) (string, error) {
	return m.site.command(ctx, m.Inside(argv...)...)
}

// Inside returns a command line that runs in the machine's network.
func (m *Machine) Inside(argv ...string) []string {
	return append(strings.Fields(m.inside("")), argv...)
}

// Lighter runs a lighter command against the machine's node.
func (m *Machine) Lighter(ctx context.Context, command string, args ...string) (string, error) {
	return m.Command(ctx, append([]string{m.site.options.Lighter, command, "--root", m.NodeRoot()}, args...)...)
}
