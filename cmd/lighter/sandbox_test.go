package main

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// What an image is tried in has no network, and can get no rights that it does
// not have.
func TestSandbox(t *testing.T) {
	s := sandbox(v1.ImageConfig{Entrypoint: []string{"/run"}, Cmd: []string{"a", "b"}}, specs.User{UID: 5, GID: 6}, "0123456789abcdef")
	if strings.Join(s.Process.Args, " ") != "/run a b" || s.Process.Cwd != "/" || s.Process.User.UID != 5 || s.Process.User.GID != 6 {
		t.Errorf("it runs %+v", s.Process)
	}
	for _, kind := range []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.PIDNamespace, specs.MountNamespace, specs.IPCNamespace} {
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
}
