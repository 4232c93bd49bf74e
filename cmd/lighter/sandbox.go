package main

import (
	"github.com/containerd/containerd/v2/contrib/seccomp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// What a trial may take.
const (
	sandboxMemory    = 2 << 30 // bytes
	sandboxProcesses = 512
	sandboxShares    = 128 // of processors; others have 1024
)

// sandbox is a container without network, of no more than Docker's usual rights, and
// of none if it does not run as root.
func sandbox(image v1.ImageConfig, user specs.User, cgroup string) *specs.Spec {
	args := append(append([]string{}, image.Entrypoint...), image.Cmd...)
	env := image.Env
	if len(env) == 0 {
		env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	}
	dir := image.WorkingDir
	if dir == "" {
		dir = "/"
	}
	caps := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_KILL"}
	rights := &specs.LinuxCapabilities{Bounding: caps}
	if user.UID == 0 {
		rights.Effective, rights.Permitted = caps, caps
	}
	memory, processes, shares := int64(sandboxMemory), int64(sandboxProcesses), uint64(sandboxShares)
	s := &specs.Spec{
		Version:  "1.0.2",
		Process:  &specs.Process{Args: args, Env: env, Cwd: dir, User: user, NoNewPrivileges: true, Capabilities: rights},
		Root:     &specs.Root{Path: "rootfs"},
		Hostname: "trial",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + cgroup,
			Resources: &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory}, Pids: &specs.LinuxPids{Limit: &processes},
				CPU: &specs.LinuxCPU{Shares: &shares}, Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			MaskedPaths: []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
				"/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	for _, kind := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace,
		specs.MountNamespace, specs.CgroupNamespace} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind})
	}
	s.Linux.Seccomp = seccomp.DefaultProfile(s)
	return s
}
