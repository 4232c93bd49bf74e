package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

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
	socket := m.containerdSocket
	pid, err := peer(socket)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return unchecked("only root may use "+socket, asRoot)
	case err != nil:
		return append([]Finding{{Level: Problem, What: "containerd cannot be reached: " + err.Error(),
			Repair: "systemctl start containerd, or --containerd SOCKET"}},
			m.containerdConfig(ctx, "containerd", defaultConfig, "")...)
	}
	info, err := containerd.Query(ctx, socket)
	found := judgeContainerd(info)
	if err != nil {
		found = unchecked(err.Error(), "")
	}
	program, config := commandOf(pid)
	return append(found, m.containerdConfig(ctx, program, config, info.Version)...)
}

func judgeContainerd(c containerd.Info) []Finding {
	err, known := c.Snapshotters[pluginName]
	return first([]rule{
		{!known, Problem, "containerd " + c.Version + " runs without a snapshotter named " + pluginName,
			"the [proxy_plugins] below in its configuration; systemctl restart containerd"},
		{err != "", Problem, "containerd " + c.Version + " could not start its snapshotter " + pluginName + ": " + err,
			"systemctl restart containerd, once the node runs"},
		{true, OK, "containerd " + c.Version + " runs, with a snapshotter named " + pluginName, ""},
	})
}

// defaultConfig is the path of containerd's configuration.
const defaultConfig = "/etc/containerd/config.toml"

// peer returns the PID of the process that listens on a Unix socket, or 0 if the process is not
// visible in this PID namespace.
func peer(socket string) (pid int, err error) {
	conn, err := net.DialTimeout("unix", socket, timeout)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	cred, err := proc.Peer(conn.(*net.UnixConn))
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// commandOf returns the paths of the program and of the configuration of a containerd process. If
// the program is not called containerd (k3s, for example, contains containerd), program is empty,
// because such a program must not be run with containerd's arguments. If the process is not
// visible, commandOf returns the defaults.
func commandOf(pid int) (program, config string) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if pid == 0 || err != nil {
		return "containerd", defaultConfig
	}
	config = configOf(strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"))
	exe := filepath.Join(proc, "exe")
	path, err := os.Readlink(exe)
	if err != nil || filepath.Base(strings.TrimSuffix(path, " (deleted)")) != "containerd" {
		return "", config
	}
	return exe, config
}

// configOf returns the path of the configuration that the arguments of a containerd name.
func configOf(argv []string) string {
	for i, arg := range argv {
		name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case !strings.HasPrefix(arg, "-") || name != "c" && name != "config":
		case given:
			return value
		case i+1 < len(argv):
			return argv[i+1]
		}
	}
	return defaultConfig
}

// containerdConfig checks containerd's configuration: the output of `containerd config dump`, or,
// if that command fails, the file. version is the version of the running containerd; empty:
// unknown.
func (m *machine) containerdConfig(ctx context.Context, program, file, version string) []Finding {
	text, err := exec.CommandContext(ctx, program, "--config", file, "config", "dump").Output()
	if err != nil {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return unchecked("containerd's configuration cannot be read: "+err.Error(),
			"--containerd SOCKET, as root, where containerd runs")
	}
	trust, err := m.config.EffectiveTrust()
	if err != nil {
		return unchecked(err.Error(), "")
	}
	found, err := judgeConfig(text, version, nodeSettings{address: m.config.Address, root: m.config.Root,
		remapIDs: m.config.RemapIDs, trustImage: trust.Trust == node.TrustImage})
	if err != nil {
		return unchecked(fmt.Sprintf("%s cannot be parsed: %v", file, err), "containerd --config "+file+" config dump")
	}
	for i := range found {
		found[i].What = file + ": " + found[i].What
	}
	return found
}
