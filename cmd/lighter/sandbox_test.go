package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// What an image is tried in has no network, and can get no rights that it does
// not have.
func TestSandbox(t *testing.T) {
	box := sandbox{args: []string{"/run", "a", "b"}, dir: "/srv", user: specs.User{UID: 5, GID: 6}, cgroup: "trial-1"}
	s := box.spec()
	if strings.Join(s.Process.Args, " ") != "/run a b" || s.Process.Cwd != "/srv" || s.Linux.CgroupsPath != "/trial-1" || s.Process.User.UID != 5 || s.Process.User.GID != 6 {
		t.Errorf("it runs %+v", s.Process)
	}
	for _, kind := range []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.PIDNamespace, specs.MountNamespace, specs.IPCNamespace,
		specs.UserNamespace} {
		if !slices.Contains(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind}) {
			t.Errorf("it shares the %s namespace", kind)
		}
	}
	for _, set := range [][]string{s.Process.Capabilities.Bounding, s.Process.Capabilities.Effective, s.Process.Capabilities.Permitted} {
		for _, right := range set {
			if strings.HasPrefix(right, "CAP_NET") || strings.HasPrefix(right, "CAP_SYS") || right == "CAP_MKNOD" {
				t.Errorf("it has %s", right)
			}
		}
	}
	if s.Linux.Seccomp == nil || s.Linux.Seccomp.DefaultAction != specs.ActErrno {
		t.Errorf("it may call all of the kernel: %+v", s.Linux.Seccomp)
	}
	for _, call := range s.Linux.Seccomp.Syscalls {
		for _, name := range []string{"mount", "bpf", "keyctl", "setns", "unshare", "io_uring_setup", "userfaultfd", "perf_event_open"} {
			if call.Action == specs.ActAllow && slices.Contains(call.Names, name) {
				t.Errorf("it may call %s", name)
			}
		}
	}
	if !s.Process.NoNewPrivileges || s.Linux.Resources.Memory == nil || s.Linux.Resources.Pids == nil {
		t.Errorf("it has no bounds: %+v", s.Linux.Resources)
	}
	for name, mapped := range map[string][]specs.LinuxIDMapping{"users": s.Linux.UIDMappings, "groups": s.Linux.GIDMappings} {
		if len(mapped) != 1 || mapped[0].ContainerID != 0 || mapped[0].HostID < 1<<20 || mapped[0].Size < 1<<16 {
			t.Errorf("its %s are %+v", name, mapped)
		}
	}
	if m := s.Linux.Resources.Memory; m.Swap != nil {
		t.Errorf("where swap is not counted it has a limit: %d", *m.Swap)
	}
	box.swap = true
	if m := box.spec().Linux.Resources.Memory; m.Swap == nil || *m.Swap != *m.Limit {
		t.Errorf("it may swap: %+v", m)
	}
}

// Swap is limited where the kernel counts it: in either version of control groups.
func TestCountsSwap(t *testing.T) {
	for file, want := range map[string]bool{"memory/memory.limit_in_bytes": false, "memory/memory.memsw.limit_in_bytes": true,
		"system.slice/memory.max": false, "system.slice/memory.swap.max": true, "memory.swap.max": true} {
		root := t.TempDir()
		path := filepath.Join(root, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		if got := countsSwap(root); got != want {
			t.Errorf("with %s: %v, want %v", file, got, want)
		}
	}
}

// A sandbox begins in a directory of its image, wherever the image's links lead.
func TestWorkDir(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	for _, dir := range []string{"srv/app", "proc/self/fd/7", "dev/fd/7", "devices", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"app": "/srv/app", "up": "../../../../srv", "fds": "/proc/self/fd", "dangling": "/proc/1/root",
		"outside": outside, "dots": "../../../../../../../.." + outside} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"": "/", "/": "/", "/srv/app": "/srv/app", "/srv//app/": "/srv/app", "srv/app": "/srv/app", "/srv/../srv/app": "/srv/app",
		"/../../srv": "/srv", "/app": "/srv/app", "/up/app": "/srv/app", "/devices": "/devices",
		"/proc": "", "/proc/self/fd/7": "", "/srv/../proc/self/fd/7": "", "../proc/self/fd/7": "", "/dev/fd/7": "", "/fds/7": "", "/fds": "",
		"/dangling": "", "/outside": "", "/dots": "", "/none": "", "/etc/file": "", "/srv\x00": "",
	} {
		got, err := workDir(root, text)
		if (err != nil) != (want == "") || got != want || err != nil && !strings.Contains(err.Error(), "WORKDIR") {
			t.Errorf("WORKDIR %q is %q, %v, want %q", text, got, err, want)
		}
	}
}
