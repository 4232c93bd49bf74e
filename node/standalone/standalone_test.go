package standalone

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"lighter/node"
)

// program writes a shell script that replaces the lighter command.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lighter")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// If a mount's own node ends at once, the error has the last line of its log, and its root is
// removed.
func TestOwnNodeThatEnds(t *testing.T) {
	for script, want := range map[string]string{
		"echo no matter; echo 'lighter: no kernel'; echo; exit 1": "start a node for the mount: no kernel",
		"exit 1": "start a node for the mount: the node ended without output",
	} {
		m := Mounts{Own: t.TempDir(), Program: program(t, script)}
		root := m.root("/mnt")
		if err := m.start(t.Context(), node.Config{Root: root}, "/mnt"); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
		if _, err := os.Stat(root); !os.IsNotExist(err) {
			t.Errorf("its root was not removed: %v", err)
		}
	}
}

// If the start of a mount's own node is cancelled, neither a process nor a root is left. Files that
// a killed node has left in the root are removed before the start.
func TestOwnNodeIsGivenUp(t *testing.T) {
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	script := "ls $(dirname $3) >" + dir + "/files; " +
		"echo $$ >" + pidFile + ".new; mv " + pidFile + ".new " + pidFile + "; exec sleep 1000"
	m := Mounts{Own: filepath.Join(dir, "own"), Program: program(t, script)}
	root := m.root("/mnt")
	if err := os.MkdirAll(filepath.Join(root, "trees"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted")
	go func() {
		for {
			if _, err := os.Stat(pidFile); err == nil || t.Context().Err() != nil {
				cancel(why)
				return
			}
		}
	}()
	if err := m.start(ctx, node.Config{Root: root}, "/mnt"); !errors.Is(err, why) {
		t.Errorf("error %v, want %v", err, why)
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d still runs: %v", pid, err)
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("its root was not removed: %v", err)
	}
	if files, err := os.ReadFile(filepath.Join(dir, "files")); err != nil || string(files) != "node.log\nnode.toml\n" {
		t.Errorf("the node started with files %q in its root, %v; want only its log and configuration", files, err)
	}
}

// A mount that starts a node waits until another mount has started its node, or until its context
// is done.
func TestOnlyOneMountStarts(t *testing.T) {
	m := Mounts{Own: filepath.Join(t.TempDir(), "own")}
	unlock, err := m.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.lock(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a second lock: got %v, want %v", err, context.Canceled)
	}
	unlock()
	if unlock, err = m.lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	unlock()
}
