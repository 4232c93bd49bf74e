package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"

	"lighter/node"
	"lighter/node/front/containerd"
	"lighter/proc"
)

// nodeSocket checks whether a node listens on the socket that containerd uses.
func (m *machine) nodeSocket(ctx context.Context) []Finding {
	socket := m.config.Address
	if socket == "" {
		return []Finding{{Level: OK, What: "the node has no address for containerd, and needs none"}}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err == nil {
		conn.Close()
	}
	return first([]rule{
		{err == nil, OK, "a node listens on " + socket, ""},
		{errors.Is(err, fs.ErrPermission), Unchecked, "only root may use " + socket, asRoot},
		{true, Problem, "no node listens on " + socket + ", so containerd cannot use the snapshotter",
			"lighter node --address " + socket},
	})
}

// containerd checks whether containerd uses the node, and is configured for it.
func (m *machine) containerd(ctx context.Context) []Finding {
	if m.config.Address == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	socket := m.config.Containerd
	c, err := FindContainerd(ctx, socket)
	_, noConfig := os.Lstat(m.path(c.Config))
	switch {
	case socket == "":
		return unchecked("no socket of containerd is configured", "--containerd SOCKET")
	case errors.Is(err, fs.ErrPermission):
		return unchecked("only root may use "+socket, asRoot)
	case errors.Is(err, fs.ErrNotExist) && errors.Is(noConfig, fs.ErrNotExist) && m.hasOtherFronts():
		return unchecked("there is no containerd: neither "+socket+" nor "+c.Config+" exists",
			`address = "" in the node's configuration, if containerd shall not use the node`)
	case !c.Running:
		return append([]Finding{{Level: Problem, What: "containerd cannot be reached: " + err.Error(),
			Repair: "systemctl start containerd, or --containerd SOCKET"}}, m.containerdConfig(ctx, c)...)
	case err != nil:
		return append(unchecked(err.Error(), ""), m.containerdConfig(ctx, c)...)
	}
	return append(m.judgeContainerd(c.Info), m.containerdConfig(ctx, c)...)
}

// hasOtherFronts reports whether tools find images by the node without containerd.
func (m *machine) hasOtherFronts() bool { return m.config.Directory != "" || m.config.ImageStore != "" }

// Containerd is the containerd of a machine.
type Containerd struct {
	containerd.Info
	Running bool
	PID     int    // 0: it is not visible in this PID namespace, or does not run
	Program string // empty: another program contains containerd, and must not be run as containerd
	Config  string // the path of its configuration
}

// FindContainerd finds the containerd that listens on a socket. If none does, it returns the
// defaults, and an error. If one does not answer, it returns an error, too.
func FindContainerd(ctx context.Context, socket string) (Containerd, error) {
	c := Containerd{Program: "containerd", Config: DefaultConfig}
	pid, err := proc.Listener(ctx, socket)
	if err != nil {
		return c, err
	}
	c.Running, c.PID = true, pid
	c.Program, c.Config = commandOf(pid)
	c.Info, err = containerd.Query(ctx, socket)
	return c, err
}

func (m *machine) judgeContainerd(c containerd.Info) []Finding {
	err, known := c.Snapshotters[pluginName]
	return first([]rule{
		{!known, Problem, "containerd " + c.Version + " runs without a snapshotter named " + pluginName,
			m.install()},
		{err != "", Problem, "containerd " + c.Version + " could not start its snapshotter " + pluginName + ": " + err,
			"systemctl restart containerd, once the node runs"},
		{true, OK, "containerd " + c.Version + " runs, with a snapshotter named " + pluginName, ""},
	})
}

// DefaultConfig is the configuration of a containerd that does not run, or whose arguments name no
// other.
const DefaultConfig = "/etc/containerd/config.toml"

// installContainerd is the command that configures containerd for the node.
const installContainerd = "sudo lighter install containerd --restart"

// commandOf returns the paths of the program and of the configuration of a containerd process. If
// the program is not called containerd (k3s, for example, contains containerd), program is empty,
// because such a program must not be run with containerd's arguments. If the process is not
// visible, commandOf returns the defaults.
func commandOf(pid int) (program, config string) {
	args := proc.Arguments(pid)
	switch {
	case args == nil:
		return "containerd", DefaultConfig
	case proc.Program(pid) != "containerd":
		return "", configOf(args)
	}
	return proc.Executable(pid), configOf(args)
}

// configOf returns the path of the configuration that the arguments of a containerd name.
func configOf(args []string) string {
	if path, given := Flag(args, "config", "c"); given {
		return path
	}
	return DefaultConfig
}

// containerdConfig checks the configuration of a containerd: the output of `containerd config
// dump`, or, if that command fails, the file.
func (m *machine) containerdConfig(ctx context.Context, c Containerd) []Finding {
	text, err := exec.CommandContext(ctx, c.Program, "--config", c.Config, "config", "dump").Output()
	if err != nil {
		text, err = os.ReadFile(c.Config)
	}
	if err != nil {
		return unchecked("containerd's configuration cannot be read: "+err.Error(),
			"--containerd SOCKET, as root, where containerd runs")
	}
	settings, err := settingsOf(m.config, m.install())
	if err != nil {
		return unchecked(err.Error(), "")
	}
	found, err := judgeConfig(text, c.Version, settings)
	if err != nil {
		return unchecked(fmt.Sprintf("%s cannot be parsed: %v", c.Config, err),
			"containerd --config "+c.Config+" config dump")
	}
	for i := range found {
		found[i].What = c.Config + ": " + found[i].What
	}
	return found
}

// install returns the command that configures containerd for the node.
func (m *machine) install() string {
	command := installContainerd
	if root := m.config.Root; root != node.DefaultConfig().Root {
		command += " --root " + root
	}
	if path := m.config.Containerd; path != "" && path != node.DefaultConfig().Containerd {
		command += " --containerd " + path
	}
	return command
}

// settingsOf returns the settings of a node. install is the command that makes containerd's
// configuration fit to them.
func settingsOf(config node.Config, install string) (nodeSettings, error) {
	trust, err := config.EffectiveTrust()
	return nodeSettings{address: config.Address, root: config.Root, remapIDs: config.RemapIDs,
		trustImage: trust.Trust == node.TrustImage, install: install}, err
}

// JudgeContainerd judges the configuration of a containerd: the output of `containerd config dump`.
// version is vMAJOR.MINOR.PATCH; config is the configuration of the node.
func JudgeContainerd(dump []byte, version string, config node.Config) ([]Finding, error) {
	settings, err := settingsOf(config, installContainerd)
	if err != nil {
		return nil, err
	}
	return judgeConfig(dump, version, settings)
}
