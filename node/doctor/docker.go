package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"lighter/proc"
)

// Defaults of Docker.
const (
	DockerSocket  = "/run/docker.sock"
	dockerConfig  = "/etc/docker/daemon.json"
	dockerPIDFile = "/run/docker.pid"
)

// installDocker is the command that configures Docker for the node.
const installDocker = "sudo lighter install docker --restart"

// Docker is the dockerd of a machine.
type Docker struct {
	Running bool
	PID     int      // 0: it is not visible, or does not run
	Program string   // dockerd
	Args    []string // its arguments; nil: they are not known
	Config  string   // the path of its configuration
	DockerInfo
}

// DockerInfo is what dockerd answers to `docker info`.
type DockerInfo struct {
	ServerVersion      string
	Driver             string // the storage driver
	DriverStatus       [][2]string
	DockerRootDir      string
	SecurityOptions    []string
	LiveRestoreEnabled bool
	Images             int
	Containers         int
	ContainersRunning  int
	Containerd         struct{ Address string } // empty before version 27
}

// ImageStore reports whether Docker keeps its images in containerd.
func (d DockerInfo) ImageStore() bool {
	return slices.Contains(d.DriverStatus, [2]string{"driver-type", "io.containerd.snapshotter.v1"})
}

// Has reports whether Docker runs with a security option: userns, rootless.
func (d DockerInfo) Has(option string) bool {
	return slices.Contains(d.SecurityOptions, "name="+option)
}

// FindDocker finds the dockerd that listens on a socket, and may find that none does. A socket of
// systemd is not used while no dockerd runs, because that would start it.
func FindDocker(ctx context.Context, socket string) (Docker, error) {
	d := Docker{Program: "dockerd", Config: dockerConfig}
	running, err := pidsOf("dockerd")
	if err != nil || len(running) == 0 {
		return d, err
	}
	pid, err := proc.Listener(ctx, socket)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return d, nil // each of these dockerds has another socket
	case err != nil:
		return d, err
	}
	d.Running = true
	if !slices.Contains(running, pid) { // systemd has made the socket
		pid = 0
		text, _ := os.ReadFile(dockerPIDFile)
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && slices.Contains(running, n) {
			pid = n
		}
	}
	if pid == 0 && len(running) == 1 {
		pid = running[0]
	}
	if d.PID = pid; pid != 0 {
		d.Program = proc.Executable(pid)
		d.Args = proc.Arguments(pid)
		if file, ok := Flag(d.Args, "config-file"); ok {
			d.Config = file
		}
	}
	d.DockerInfo, err = askDocker(ctx, socket)
	return d, err
}

// SameSocket reports whether two paths name the same socket.
func SameSocket(a, b string) bool {
	first, err := os.Stat(a)
	second, err2 := os.Stat(b)
	return a == b || err == nil && err2 == nil && os.SameFile(first, second)
}

// Flag returns the value of the last flag with one of the names, as dockerd, containerd and
// buildkitd read their arguments.
func Flag(args []string, names ...string) (value string, given bool) {
	for i, arg := range args {
		name, v, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case !strings.HasPrefix(arg, "-") || !slices.Contains(names, name):
		case joined:
			value, given = v, true
		case i+1 < len(args):
			value, given = args[i+1], true
		}
	}
	return value, given
}

// pidsOf returns the processes whose program has a name.
func pidsOf(program string) ([]int, error) {
	all, err := proc.All()
	return slices.DeleteFunc(all, func(pid int) bool { return proc.Program(pid) != program }), err
}

// maxDockerInfo bounds the answer of dockerd.
const maxDockerInfo = 4 << 20

// askDocker asks dockerd for what `docker info` shows.
func askDocker(ctx context.Context, socket string) (info DockerInfo, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/info", nil)
	if err != nil {
		return info, err
	}
	res, err := client.Do(req)
	if err != nil {
		return info, fmt.Errorf("ask Docker at %s: %w", socket, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return info, fmt.Errorf("ask Docker at %s: %s", socket, res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxDockerInfo)).Decode(&info); err != nil {
		return info, fmt.Errorf("ask Docker at %s: its answer: %w", socket, err)
	}
	return info, nil
}

// docker checks whether Docker, if it runs, uses the node.
func (m *machine) docker(ctx context.Context) []Finding {
	if m.config.Address == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d, err := FindDocker(ctx, DockerSocket)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return unchecked("only root may use "+DockerSocket, asRoot)
	case !d.Running:
		return nil
	case err != nil:
		return unchecked(err.Error(), "")
	}
	return judgeDocker(d, m.config.Containerd)
}

// judgeDocker judges a running Docker. containerd is the socket that the node knows.
func judgeDocker(d Docker, containerd string) []Finding {
	uses := d.ImageStore() && d.Driver == pluginName
	name, address := "Docker "+d.ServerVersion, d.Containerd.Address
	configured, _ := os.ReadFile(d.Config)
	return first([]rule{
		{uses && d.Has("userns"), Warning, name + " uses the node, with userns-remap: it reads the whole image for " +
			"each container, because it changes the owners of all files", "remove userns-remap from " + d.Config},
		{uses && address != "" && !SameSocket(address, containerd), Problem,
			fmt.Sprintf("%s uses the containerd at %s, and the node the one at %s", name, address, containerd),
			"--containerd " + address},
		{uses, OK, name + " uses the node", ""},
		{strings.Contains(string(configured), `"`+pluginName+`"`), Warning,
			name + " still uses the storage driver " + d.Driver + ": it has not read " + d.Config + " again",
			"sudo systemctl restart docker"},
		{true, OK, name + " uses the storage driver " + d.Driver + ": its images are not lazy", installDocker},
	})
}
