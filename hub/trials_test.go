package hub

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The control group of a killed trial is removed from each hierarchy, even if its last process ends
// only now. Those of other hubs are kept.
func TestCgroupOfAKilledTrialIsRemoved(t *testing.T) {
	root, mount := t.TempDir(), t.TempDir()
	name, err := trialCgroup(root)
	if err != nil || !strings.HasPrefix(name, "lighter-trial-") {
		t.Fatalf("%q, %v", name, err)
	}
	other, err := trialCgroup(t.TempDir())
	if err != nil || other == name {
		t.Fatalf("two hubs have %q and %q, %v", name, other, err)
	}
	busy := filepath.Join(mount, "pids", name, "process") // it cannot be removed either
	for _, dir := range []string{filepath.Join(mount, "memory", name), busy, filepath.Join(mount, name),
		filepath.Join(mount, "pids", other)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeCgroupNow(mount, name); err == nil {
		t.Error("a control group with processes was removed")
	}
	ended := make(chan error, 1)
	time.AfterFunc(cgroupPause, func() { ended <- os.Remove(busy) })
	if err := removeCgroup(mount, name); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{name, "*/" + name} {
		if left, _ := filepath.Glob(filepath.Join(mount, pattern)); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
	if _, err := os.Stat(filepath.Join(mount, "pids", other)); err != nil {
		t.Error(err)
	}
}

// A hub that cannot run trials does not start with trace_run.
func TestTrialsAreImpossible(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // without runc
	config := DefaultConfig()
	config.Root, config.TraceRun = t.TempDir(), true
	h, err := Open(t.Context(), config, slog.New(slog.DiscardHandler))
	if err == nil {
		h.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "trace_run") || !strings.Contains(err.Error(), "runc") {
		t.Errorf("open without runc: %v, want an error that names trace_run and runc", err)
	}
}
