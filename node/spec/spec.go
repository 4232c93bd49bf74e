// Package spec makes the configuration of an OCI runtime (config.json) from an image's config, as
// containerd makes it: the same capabilities, mounts, masked paths, devices and seccomp profile.
//
// It is made from the config, the options, and the users and groups of the root file system. No
// symbolic link leads out of that file system. Of the machine, the package looks only at its
// kernel, its name, and whether it has the files that find other hosts.
//
// Hazard: containers run as root of the machine unless the image or the options name another user.
// Only capabilities, seccomp and the runtime's namespaces confine them.
package spec

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Network is what a container sees of the network.
type Network string

// Values of Network.
const (
	NetworkHost Network = "host" // the machine's network
	NetworkNone Network = "none" // only a loopback device
)

// Environment returns variables as NAME=VALUE. A name alone gets its value from this process, or is
// left out if it has none there.
func Environment(list []string) (variables []string, err error) {
	for _, text := range list {
		name, _, isSet := strings.Cut(text, "=")
		if name == "" {
			return nil, fmt.Errorf("variable %q has no name: want NAME=VALUE, or NAME", text)
		}
		if !isSet {
			value, ok := os.LookupEnv(name)
			if !ok {
				continue
			}
			text = name + "=" + value
		}
		variables = append(variables, text)
	}
	return variables, nil
}

// Options are the user's choices. The zero value of a field leaves the choice to the image, or to
// the default.
type Options struct {
	Args       []string // the command; replaces the image's
	Entrypoint string   // replaces the image's entrypoint, and removes the image's command
	Env        []string // NAME=VALUE
	User       string   // USER[:GROUP], names or numbers
	Dir        string   // the working directory
	Volumes    []Volume
	Network    Network // default: NetworkHost
	Hostname   string  // without the host's network
	ReadOnly   bool    // no writes to the root file system
	Rootless   bool    // the runtime is in a user namespace: the container has no cgroup of its own
	Terminal   bool
	Rows       uint    // of the terminal at its start; 0: unknown
	Columns    uint    // of the terminal at its start; 0: unknown
	Memory     int64   // bytes; 0: no limit
	CPUs       float64 // 0: no limit
	// Files is the hard limit of open files. The soft limit is the default of containers,
	// defaultFiles, or less. 0: both are the default.
	Files uint64
}

// Check returns an error that names a wrong option.
func (o *Options) Check() error {
	switch {
	case o.Network != "" && o.Network != NetworkHost && o.Network != NetworkNone:
		return fmt.Errorf("network %q is neither %s nor %s", o.Network, NetworkHost, NetworkNone)
	case o.Memory < 0 || o.Memory > 0 && o.Memory < minMemory:
		return fmt.Errorf("%d bytes of memory are too little: the least is %d MiB", o.Memory, minMemory>>20)
	case o.CPUs != 0 && !(o.CPUs >= minCPUs && o.CPUs <= maxCPUs): // also not a number
		return fmt.Errorf("%g processors: want %g to %d", o.CPUs, minCPUs, maxCPUs)
	case o.Rootless && (o.Memory > 0 || o.CPUs > 0):
		return fmt.Errorf("limits of memory and processors need root: without it, systemd sets them on a machine "+
			"whose cgroups have version 2 (%s lighter run ...)", o.limited())
	}
	return nil
}

// limited returns the beginning of a command line that runs a program with the limits. On a machine
// with cgroups of version 1, systemd ignores them without a word.
func (o *Options) limited() string {
	line := "systemd-run --user --scope"
	if o.Memory > 0 {
		line += fmt.Sprintf(" -p MemoryMax=%d", o.Memory)
	}
	if o.CPUs > 0 {
		line += fmt.Sprintf(" -p CPUQuota=%.0f%%", math.Ceil(o.CPUs*100))
	}
	return line
}

const (
	// minMemory is the least limit of memory with which runtimes start a process, in bytes.
	minMemory = 6 << 20
	// minCPUs is the least limit that the kernel accepts, a quota of 1 ms.
	minCPUs = 0.01
	maxCPUs = 1 << 13
	// namespace names the cgroup above the containers'.
	namespace = "lighter"
	// defaultFiles is the limit of open files of containerd's containers.
	defaultFiles = 1024
	// cpuPeriod is the period of the limit of CPU time, in microseconds.
	cpuPeriod = 100_000
	// version is that of the runtime specification: crun refuses configurations with a version that
	// is newer than itself. Nothing newer is used.
	version = "1.0.2"
	// terminalType is the type of the terminal that a runtime gives to a container.
	terminalType = "xterm"
)

// Root is the path of the root file system in a bundle.
const Root = "rootfs"

// Spec is a runtime's configuration, as config.json has it.
type Spec = specs.Spec

// New returns the spec of a container with that ID. config is the image's config, and root the
// absolute path of the bundle's root file system. An empty ID leaves the cgroup to the runtime.
func New(ctx context.Context, config []byte, root, id string, o Options) (*Spec, error) {
	image, err := parse(config)
	if err != nil {
		return nil, err
	}
	o.override(&image.Config)
	if len(image.Config.Entrypoint)+len(image.Config.Cmd) == 0 {
		return nil, errors.New("the image has neither entrypoint nor command: name a command after the image")
	}
	config, err = json.Marshal(image)
	if err != nil {
		return nil, err
	}
	ctx = namespaces.WithNamespace(ctx, namespace)
	options := []oci.SpecOpts{
		oci.WithRootFSPath(root), oci.WithoutRunMount, oci.WithDefaultUnixDevices,
		oci.WithImageConfig(memory{config}), seccomp.WithDefaultProfile(), oci.WithAnnotations(annotations(image)),
	}
	s, err := oci.GenerateSpec(ctx, nil, &containers.Container{ID: id}, append(options, o.options()...)...)
	if err != nil {
		return nil, explain(image.Config.User, err)
	}
	if id == "" {
		s.Linux.CgroupsPath = ""
	}
	if o.Terminal && !slices.ContainsFunc(s.Process.Env, isTerm) {
		s.Process.Env = append(s.Process.Env, "TERM="+terminalType)
	}
	s.Version, s.Root.Path = version, Root
	return s, nil
}

func isTerm(variable string) bool { return strings.HasPrefix(variable, "TERM=") }

// parse parses an image's config.
func parse(config []byte) (*v1.Image, error) {
	var image v1.Image
	if err := json.Unmarshal(config, &image); err != nil {
		return nil, fmt.Errorf("parse the image's config: %w", err)
	}
	if image.OS != "" && image.OS != "linux" {
		return nil, fmt.Errorf("the image is for %s: only images for linux can be run", image.OS)
	}
	return &image, nil
}

// override replaces what the user has chosen.
func (o *Options) override(config *v1.ImageConfig) {
	if o.Entrypoint != "" {
		config.Entrypoint, config.Cmd = []string{o.Entrypoint}, nil
	}
	if len(o.Args) > 0 {
		config.Cmd = o.Args
	}
	config.User = cmp.Or(o.User, config.User)
	// The runtime refuses relative paths. In an image they are relative to the root.
	config.WorkingDir = path.Join("/", cmp.Or(o.Dir, config.WorkingDir))
}

// options returns the options of the spec that do not depend on the image.
func (o *Options) options() []oci.SpecOpts {
	list := []oci.SpecOpts{oci.WithEnv(o.Env), oci.WithRlimit(o.files())}
	if o.Rootless {
		list = append(list, o.rootless)
	} else {
		list = append(list, oci.WithMounts(cgroups))
	}
	if o.Network == NetworkNone {
		list = append(list, oci.WithHostname(o.Hostname))
	} else {
		list = append(list, hostNetwork()...)
	}
	if _, err := os.Stat(unified); err == nil && !o.Rootless {
		list = append(list, oci.WithNamespacedCgroup())
	}
	if o.Terminal {
		list = append(list, o.terminal)
	}
	if o.ReadOnly {
		list = append(list, oci.WithRootFSReadonly())
	}
	if o.Memory > 0 {
		list = append(list, oci.WithMemoryLimit(uint64(o.Memory)))
	}
	if o.CPUs > 0 {
		list = append(list, oci.WithCPUCFS(int64(o.CPUs*cpuPeriod), cpuPeriod))
	}
	for _, v := range o.Volumes {
		list = append(list, oci.WithMounts([]specs.Mount{v.mount()}))
	}
	return list
}

// rootless removes what a user namespace does not allow: limits, and a sysfs of the machine's
// network. The container sees the machine's /sys instead, without /sys/fs: the user may write in
// some of its file systems (cgroups, connections of FUSE), and "ro" is only for /sys itself.
func (o *Options) rootless(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	s.Linux.CgroupsPath, s.Linux.Resources = "", nil
	for i, m := range s.Mounts {
		if m.Type == "sysfs" && o.Network != NetworkNone {
			s.Mounts[i].Type, s.Mounts[i].Source = "bind", "/sys"
			s.Mounts[i].Options = append([]string{"rbind"}, m.Options...)
			s.Linux.MaskedPaths = append(slices.Clone(s.Linux.MaskedPaths), "/sys/fs")
		}
	}
	return nil
}

// unified is a file that only cgroup v2 has.
const unified = "/sys/fs/cgroup/cgroup.controllers"

// cgroups shows the container its own cgroup, so that programs can read their limits.
var cgroups = []specs.Mount{{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
	Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}}}

// terminal gives the process a terminal. It has its size before the process starts.
func (o *Options) terminal(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	s.Process.Terminal = true
	if o.Rows > 0 && o.Columns > 0 {
		s.Process.ConsoleSize = &specs.Box{Height: o.Rows, Width: o.Columns}
	}
	return nil
}

// files returns the limit of open files.
func (o *Options) files() *specs.POSIXRlimit {
	hard := cmp.Or(o.Files, defaultFiles)
	return &specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Hard: hard, Soft: min(hard, defaultFiles)}
}

// hostNetwork leaves the container in the host's network, with the host's name and the files that
// find other hosts.
func hostNetwork() []oci.SpecOpts {
	list := []oci.SpecOpts{oci.WithHostNamespace(specs.NetworkNamespace)}
	if name, err := os.Hostname(); err == nil {
		list = append(list, oci.WithHostname(name))
	}
	if _, err := os.Stat("/etc/hosts"); err == nil {
		list = append(list, oci.WithHostHostsFile)
	}
	if _, err := os.Stat("/etc/resolv.conf"); err == nil {
		list = append(list, oci.WithHostResolvconf)
	}
	return list
}

// annotations returns the image's labels, and the properties that the image specification turns
// into annotations.
func annotations(image *v1.Image) map[string]string {
	const prefix = "org.opencontainers.image."
	all := map[string]string{
		"os": image.OS, "architecture": image.Architecture, "variant": image.Variant, "author": image.Author,
		"stopSignal":   image.Config.StopSignal,
		"exposedPorts": strings.Join(slices.Sorted(maps.Keys(image.Config.ExposedPorts)), ","),
	}
	if image.Created != nil {
		all["created"] = image.Created.Format(time.RFC3339Nano)
	}
	found := map[string]string{}
	for name, value := range all {
		if value != "" {
			found[prefix+name] = value
		}
	}
	maps.Copy(found, image.Config.Labels)
	return found
}

// explain names the user whom the root file system does not have.
func explain(user string, err error) error {
	switch {
	case errors.Is(err, oci.ErrNoUsersFound):
		return fmt.Errorf("user %q is not in the image's /etc/passwd: name another one with --user, or a number", user)
	case errors.Is(err, oci.ErrNoGroupsFound):
		return fmt.Errorf("group of user %q is not in the image's /etc/group: name another one with --user, "+
			"or a number", user)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the image has no /etc/passwd or no /etc/group to find user %q in: "+
			"name a number with --user: %w", user, err)
	}
	return fmt.Errorf("make the container's configuration for user %q: %w", user, err)
}

// memory is an oci.Image whose config is in memory.
type memory struct{ config []byte }

func (m memory) Config(context.Context) (v1.Descriptor, error) {
	return v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(m.config),
		Size: int64(len(m.config)), Data: m.config}, nil
}

// ContentStore returns no store, because the descriptor holds the content.
func (memory) ContentStore() content.Store { return nil }
