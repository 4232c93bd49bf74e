package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/api/services/containers/v1"

	"lighter/install"
	"lighter/node/doctor"
)

// The machine removes Lighter by a service that outlives a restart. After SIGKILL at any call of
// systemctl, the service removes the rest, also what is in the configured directory. Without its
// program, systemd does not start it again: nothing is left then.
func TestKilledRemoval(t *testing.T) {
	const variable = "LIGHTER_TEST_KILLED_REMOVAL"
	removed := func(root string) error {
		h := &Host{Machine: install.Machine{System: root}, Decode: decode, Root: "/srv/lighter"}
		_, err := h.RemoveUnused(t.Context(), true, time.Minute, slog.New(slog.DiscardHandler))
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
		if !install.Missing(h.Machine.Path(link)) {
			if err := removed(h.Machine.System); err != nil {
				t.Fatalf("after call %d: %v", call, err)
			}
		}
		if err := os.Remove(h.Machine.Path("/srv")); err != nil || tree(t, h) != before {
			t.Errorf("after call %d: got\n%s\n(%v), want\n%s", call, tree(t, h), err, before)
		}
		if err == nil {
			return
		}
	}
}

// A removal that fails says why, in the log once and where the doctor finds it. Without its unit,
// which it removes before its program, it removes the rest.
func TestFailedRemoval(t *testing.T) {
	h, d := lay(t, systems["kubeadm 2.4"], "")
	before := tree(t, h)
	if _, err := h.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.users = []*containers.Container{{ID: "1", Snapshotter: "lighter"}}
	var log bytes.Buffer
	// A deadline would end a connection's attempt a moment before the context.
	ctx, cancel := context.WithCancel(t.Context())
	defer time.AfterFunc(100*time.Millisecond, cancel).Stop()
	_, err := h.RemoveUnused(ctx, false, time.Millisecond, slog.New(slog.NewTextHandler(&log, nil)))
	said, _ := os.ReadFile(h.Machine.Path(doctor.RemovalFile))
	if err == nil || strings.Count(log.String(), "container 1") != 1 || !strings.Contains(string(said), "container 1") {
		t.Errorf("got %v, log %q, for the doctor %q; want the user in all of them, once", err, log.String(), said)
	}
	d.users = nil
	if _, err := h.Install(t.Context()); err != nil || !install.Missing(h.Machine.Path(doctor.RemovalFile)) {
		t.Errorf("the next installation: %v, and the doctor still finds a removal", err)
	}
	if _, err := h.HandOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(h.Machine.Path(removalFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Remove(t.Context(), false); err != nil || tree(t, h) != before {
		t.Errorf("remove: %v; got\n%s\nwant\n%s", err, tree(t, h), before)
	}
}

// Operations wait for each other. If it takes too long, the error names the other one.
func TestLock(t *testing.T) {
	h, _ := lay(t, systems["kubeadm 2.4"], "")
	before := tree(t, h)
	unlock, err := h.lock(t.Context(), "an installation")
	if err != nil {
		t.Fatal(err)
	}
	for name, operation := range map[string]func(ctx context.Context) error{
		"install":   func(ctx context.Context) error { _, err := h.Install(ctx); return err },
		"withdraw":  func(ctx context.Context) error { _, err := h.Withdraw(ctx, ""); return err },
		"hand over": func(ctx context.Context) error { _, err := h.HandOver(ctx); return err },
		"remove":    func(ctx context.Context) error { _, err := h.Remove(ctx, false); return err },
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			err := operation(t.Context())
			want := fmt.Sprintf("process %d, an installation since", os.Getpid())
			if err == nil || !strings.Contains(err.Error(), want) || time.Since(start) > 2*lockTimeout {
				t.Errorf("%s: after %s: got %v, want an error with %q", name, time.Since(start), err, want)
			}
		})
	}
	if got := tree(t, h); got != before {
		t.Errorf("got\n%s\nwant no change of\n%s", got, before)
	}
	unlock()
	if _, err := h.Install(t.Context()); err != nil {
		t.Error(err)
	}
}

// An installation ends the removal that waits. One that only looks for what was lost restarts
// containerd if its lines are gone, or if it runs without them although they are there, and not if
// somebody else has changed its configuration.
func TestAgain(t *testing.T) {
	h, d := lay(t, systems["kubeadm 2.4"], `case "$*" in *containerd.service) rm -f $root/run/old;; esac`)
	old := h.Machine.Path("/run/old") // containerd was started before its files were changed
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
	d.old = old
	if c := calls(t, h); !strings.Contains(c, "systemctl disable --now "+removal+"\n") ||
		!install.Missing(h.Machine.Path(removalFile)) {
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
		"snapshotter": {func(string) error { return os.WriteFile(old, nil, 0o644) },
			"systemctl restart containerd.service\n"},
		"nothing":     {func(string) error { return nil }, "systemctl start lighter-node.service\n"},
		"other lines": {func(config string) error { return os.Chtimes(config, time.Time{}, time.Now()) }, ""},
	} {
		if err := test.lose(h.Machine.Path(doctor.DefaultConfig)); err != nil {
			t.Fatal(err)
		}
		r, err := h.Install(t.Context())
		c := calls(t, h)
		if err != nil || !strings.Contains(c, test.want) || tree(t, h) != installed ||
			strings.Contains(c, "restart containerd") != (name == "lines" || name == "snapshotter") {
			t.Errorf("%s lost: got %+v, %v, calls\n%s\nwant %q and all files", name, r, err, c, test.want)
		}
	}
}
