package main

import (
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// What a trial may take.
const (
	sandboxMemory    = 2 << 30 // bytes
	sandboxProcesses = 512
	sandboxShares    = 128 // of processors; others have 1024
)

const (
	// firstSandboxID is the user and group of this machine that root of a sandbox is. Its other
	// sandboxIDs-1 users and groups follow: none of them is anybody's where systemd's ranges hold.
	firstSandboxID = 0x70000000
	sandboxIDs     = 0x10000000
	// sandboxRoot is where the root of a sandbox is mounted.
	sandboxRoot = trialFiles + "/root"
)

// sandboxMounts are what a sandbox has mounted below its root.
var sandboxMounts = []specs.Mount{
	{Destination: "/proc", Type: "proc", Source: "proc"},
	{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
	{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
	{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
	{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
}

// sandbox is a container without network, in a user namespace, of no more than Docker's usual
// rights there, and of none if it does not run as root.
type sandbox struct {
	args, env []string
	dir       string // as workDir returns it
	user      specs.User
	cgroup    string // its name, in each hierarchy
	swap      bool   // the kernel counts swap
}

// spec is what runc is given.
func (b *sandbox) spec() *specs.Spec {
	env := b.env
	if len(env) == 0 {
		env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	}
	caps := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_KILL"}
	rights := &specs.LinuxCapabilities{Bounding: caps}
	if b.user.UID == 0 {
		rights.Effective, rights.Permitted = caps, caps
	}
	total, processes, shares := int64(sandboxMemory), int64(sandboxProcesses), uint64(sandboxShares)
	memory := &specs.LinuxMemory{Limit: &total}
	if b.swap {
		memory.Swap = &total // of memory and swap together
	}
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: firstSandboxID, Size: sandboxIDs}}
	s := &specs.Spec{
		Version:  "1.0.2",
		Process:  &specs.Process{Args: b.args, Env: env, Cwd: b.dir, User: b.user, NoNewPrivileges: true, Capabilities: rights},
		Root:     &specs.Root{Path: sandboxRoot},
		Hostname: "trial",
		Mounts:   sandboxMounts,
		Linux: &specs.Linux{
			CgroupsPath: "/" + b.cgroup,
			UIDMappings: ids,
			GIDMappings: ids,
			Resources: &specs.LinuxResources{Memory: memory, Pids: &specs.LinuxPids{Limit: &processes},
				CPU: &specs.LinuxCPU{Shares: &shares}, Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			MaskedPaths: []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
				"/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	for _, kind := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace,
		specs.MountNamespace, specs.CgroupNamespace, specs.UserNamespace} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind})
	}
	s.Linux.Seccomp = seccomp.DefaultProfile(s)
	return s
}
