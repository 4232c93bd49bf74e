package kubernetes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/install"
	"lighter/node/doctor"
)

// The machine removes Lighter by a service that outlives a restart. After SIGKILL at any call of
// systemctl, the service removes the rest, also what is in the configured directory.
func TestKilledRemoval(t *testing.T) {
	const variable = "LIGHTER_TEST_KILLED_REMOVAL"
	removed := func(root string) error {
		h := &Host{Machine: install.Machine{System: root}, Decode: decode, Root: "/srv/lighter"}
		_, err := h.RemoveUnused(t.Context(), true, time.Minute)
		return err
	}
	if root := os.Getenv(variable); root != "" {
		fmt.Println("the removal ended:", removed(root))
		return
	}
	s := systems["kubeadm 1.7"]
	for call := 1; ; call++ {
		h, _ := lay(t, s, "")
		h.Config = append(h.Config, "root = '/srv/lighter'\n"...)
		before := tree(t, h)
		if _, err := h.Install(t.Context()); err != nil {
			t.Fatal(err)
		}
		write(t, h.Machine.Path("/srv/lighter/chunk"), "chunk")
		if _, err := h.HandOver(t.Context(), "--purge=true"); err != nil {
			t.Fatal(err)
		}
		unit, err := os.ReadFile(h.Machine.Path(removalFile))
		if want := ` "--purge=true" "--root=/srv/lighter"`; err != nil || !strings.Contains(string(unit), want) ||
			!strings.Contains(calls(t, h), "systemctl enable --now "+removal+"\n") {
			t.Fatalf("got the unit %s (%v), want %s in it, and that it was enabled", unit, err, want)
		}
		systemctl := filepath.Join(filepath.Dir(h.Machine.System), "systemctl")
		write(t, systemctl, fmt.Sprintf("#!/bin/sh\necho >> %[1]s/../calls\n[ $(wc -l < %[1]s/../calls) != %[2]d ] || "+
			"kill -9 $PPID\n", h.Machine.System, call))
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledRemoval$")
		cmd.Env = append(os.Environ(), variable+"="+h.Machine.System)
		out, err := cmd.CombinedOutput()
		if err == nil && (call < 5 || !strings.Contains(string(out), "the removal ended: <nil>")) {
			t.Fatalf("call %d: %s; want a removal of at least 5 calls", call, out)
		}
		if err != nil && !strings.Contains(err.Error(), "killed") {
			t.Fatalf("call %d: %v: %s", call, err, out)
		}
		write(t, systemctl, "#!/bin/sh\n")
		if err := removed(h.Machine.System); err != nil {
			t.Fatalf("after call %d: %v", call, err)
		}
		if err := os.Remove(h.Machine.Path("/srv")); err != nil || tree(t, h) != before {
			t.Errorf("after call %d: got\n%s\n(%v), want\n%s", call, tree(t, h), err, before)
		}
		if err == nil {
			return
		}
	}
}

// An installation ends the removal that waits. One that only looks for what was lost restarts
// containerd if its lines are gone, and not if somebody else has changed its configuration.
func TestAgain(t *testing.T) {
	s := systems["kubeadm 2.4"]
	h, _ := lay(t, s, "")
	for range 2 {
		if _, err := h.Install(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := h.HandOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.Config = append(h.Config, "# another one\n"...)
	}
	calls(t, h)
	if _, err := h.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := calls(t, h); !strings.Contains(c, "systemctl disable --now "+removal+"\n") ||
		exists(h.Machine.Path(removalFile)) {
		t.Errorf("got the calls\n%s\nwant that the removal ends", c)
	}
	installed := tree(t, h)
	h.Again = true
	for name, test := range map[string]struct {
		lose func(config string) error
		want string
	}{
		"lines": {func(config string) error { return os.WriteFile(config, []byte(current), 0o644) },
			"systemctl restart containerd.service\n"},
		"unit": {func(string) error { return os.Remove(h.Machine.Path(unitFile)) },
			"systemctl restart lighter-node.service\n"},
		"nothing":     {func(string) error { return nil }, "systemctl start lighter-node.service\n"},
		"other lines": {func(config string) error { return os.Chtimes(config, time.Time{}, time.Now()) }, ""},
	} {
		if err := test.lose(h.Machine.Path(doctor.DefaultConfig)); err != nil {
			t.Fatal(err)
		}
		r, err := h.Install(t.Context())
		c := calls(t, h)
		if err != nil || !strings.Contains(c, test.want) || tree(t, h) != installed ||
			strings.Contains(c, "restart containerd") != (name == "lines") {
			t.Errorf("%s lost: got %+v, %v, calls\n%s\nwant %q and all files", name, r, err, c, test.want)
		}
	}
}
