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

// lookAtContainerd examines whether containerd uses the node, and is configured for it.
func (d *doctor) lookAtContainerd(ctx context.Context, socket string) {
	const area = "containerd"
	if d.config.Address == "" {
		d.add(area, OK, "the node has no address for containerd, and needs none", "")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d.lookAtSocket(ctx)
	pid, err := peer(socket)
	switch {
	case errors.Is(err, fs.ErrPermission):
		d.add(area, Unchecked, "only root may use "+socket, "sudo lighter doctor")
		return
	case err != nil:
		d.add(area, Problem, "containerd cannot be reached: "+err.Error(),
			"systemctl start containerd, or --containerd SOCKET")
		d.lookAtFile(ctx, "containerd", defaultConfig, "")
		return
	}
	said, err := containerd.Query(ctx, socket)
	if err != nil {
		d.add(area, Unchecked, err.Error(), "")
	} else {
		d.judgeContainerd(said)
	}
	program, config := commandOf(pid)
	d.lookAtFile(ctx, program, config, said.Version)
}

// lookAtSocket examines whether a node listens on the socket that containerd uses.
func (d *doctor) lookAtSocket(ctx context.Context) {
	const area = "containerd"
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", d.config.Address)
	switch {
	case err == nil:
		conn.Close()
		d.add(area, OK, "a node listens on "+d.config.Address, "")
	case errors.Is(err, fs.ErrPermission):
		d.add(area, Unchecked, "only root may use "+d.config.Address, "sudo lighter doctor")
	default:
		d.add(area, Problem, "no node listens on "+d.config.Address+": containerd cannot use it",
			"lighter node --address "+d.config.Address)
	}
}

func (d *doctor) judgeContainerd(c containerd.Info) {
	const area = "containerd"
	why, known := c.Snapshotters[pluginName]
	switch {
	case !known:
		d.add(area, Problem, "containerd "+c.Version+" runs without a snapshotter named "+pluginName,
			"the [proxy_plugins] below in its configuration; systemctl restart containerd")
	case why != "":
		d.add(area, Problem, "containerd "+c.Version+" could not start its snapshotter "+pluginName+": "+why,
			"systemctl restart containerd, once the node runs")
	default:
		d.add(area, OK, "containerd "+c.Version+" runs, with a snapshotter named "+pluginName, "")
	}
}

// defaultConfig is the path of containerd's configuration.
const defaultConfig = "/etc/containerd/config.toml"

// peer returns the process that listens on a Unix socket; 0 if it is not visible from here.
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

// commandOf returns the program of a containerd process, and its configuration. For a program of
// another name, which contains containerd, no program is returned: it is not run.
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

// configOf returns the path of the configuration that a containerd was started with.
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

// lookAtFile examines containerd's configuration: as containerd itself dumps it, or, without its
// program, the file. version is the running containerd's, if it is known.
func (d *doctor) lookAtFile(ctx context.Context, program, file, version string) {
	const area = "containerd"
	text, err := exec.CommandContext(ctx, program, "--config", file, "config", "dump").Output()
	if err != nil {
		if text, err = os.ReadFile(file); err != nil {
			d.add(area, Unchecked, "containerd's configuration cannot be read: "+err.Error(),
				"--containerd SOCKET, as root, where containerd runs")
			return
		}
	}
	if version == "" {
		if output, err := exec.CommandContext(ctx, program, "--version").Output(); err == nil {
			version = versionOf(string(output))
		}
	}
	trust, err := d.config.EffectiveTrust()
	if err != nil {
		d.add(area, Unchecked, err.Error(), "")
		return
	}
	findings, err := judgeConfig(text, version, d.config.Address, d.config.Root, d.config.RemapIDs,
		trust.Trust == node.TrustImage)
	if err != nil {
		d.add(area, Unchecked, fmt.Sprintf("%s cannot be parsed: %v", file, err), "containerd --config "+file+" config dump")
		return
	}
	for _, f := range findings {
		f.What = file + ": " + f.What
		d.findings = append(d.findings, f)
	}
}

// versionOf returns the version in the output of containerd --version: name, origin, version,
// revision.
func versionOf(output string) string {
	fields := strings.Fields(output)
	if len(fields) < 3 {
		return ""
	}
	return "v" + strings.TrimPrefix(fields[2], "v")
}
