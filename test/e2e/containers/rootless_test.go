//go:build e2e

package containers

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lighter/proc"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/unprivileged"
)

// user is a user without privileges on a machine whose node has an image store.
type user struct {
	t     *testing.T
	dir   string
	store string
	node  *exec.Cmd
	flags []string // of the node
	as    []string // runs a program as the user
}

// newUser starts a node with flags, and waits until its store has the images of the hub.
func newUser(t *testing.T, flags ...string) *user {
	t.Helper()
	dir, err := os.MkdirTemp("", "user-")
	if err != nil {
		t.Fatal(err)
	}
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	u := &user{t: t, dir: dir, store: filepath.Join(dir, "store"), flags: flags}
	u.as = unprivileged.New(t, dir)
	u.startNode()
	t.Cleanup(func() {
		u.stopNode()
		execute(t, "", lighter, "release", "--root", u.root()).gives(0)
		table, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil || strings.Contains(string(table), " "+dir+"/") {
			t.Errorf("mounts are left below %s (%v): %s", dir, err, table)
		}
		if left := u.leftovers(); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	eventually.Holds(t, "the images of the store", func() bool {
		text, err := os.ReadFile(filepath.Join(u.store, "overlay-images", "images.json"))
		return err == nil && strings.Contains(string(text), "/app:1") && strings.Contains(string(text), "/bare:1")
	})
	return u
}

func (u *user) root() string { return filepath.Join(u.dir, "node") }

func (u *user) startNode() {
	u.t.Helper()
	var err error
	u.node, err = background(u.dir, "node", slices.Concat([]string{"--root", u.root(), "--address", "",
		"--disk-free-low", "0", "--image-store", u.store, "--image-store-refresh", "1s"}, u.flags)...)
	if err != nil {
		u.t.Fatal(err)
	}
	eventually.Holds(u.t, "the user's node", func() bool {
		return exec.Command(lighter, "status", "--root", u.root()).Run() == nil
	})
}

func (u *user) stopNode() {
	u.t.Helper()
	if err := errors.Join(u.node.Process.Signal(syscall.SIGTERM), u.node.Wait()); err != nil {
		u.t.Errorf("stop the user's node: %v", err)
	}
}

// homes is the directory of the user's containers.
func (u *user) homes() string { return filepath.Join(u.dir, "home/.local/share/lighter-containers") }

// leftovers lists what is left of the user's containers.
func (u *user) leftovers() (left []string) {
	entries, err := os.ReadDir(u.homes())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		u.t.Fatal(err)
	}
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		u.t.Fatal(err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), u.homes()) {
			left = append(left, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return left
}

// runtimes returns the PIDs of the OCI runtimes of the user's containers.
func (u *user) runtimes() (pids []int) {
	all, err := proc.All()
	if err != nil {
		u.t.Fatal(err)
	}
	for _, pid := range all {
		if args := proc.Arguments(pid); len(args) > 1 && args[0] == "--root" && strings.HasPrefix(args[1], u.homes()) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// command returns the arguments of the user's `lighter run`.
func (u *user) command(args ...string) []string {
	return slices.Concat(u.as, []string{lighter, "run", "--runtime", oci, "--image-store", u.store}, args)
}

func (u *user) run(args ...string) result {
	u.t.Helper()
	return execute(u.t, "", u.command(args...)...)
}

// A user without privileges runs an image of the hub: lazily, and with the owners of its files. The
// container can change owners, and has the user's own rights on volumes.
func TestRootless(t *testing.T) { withEachRuntime(t, testRootless) }

func testRootless(t *testing.T) {
	u := newUser(t)
	u.run("app:1").gives(0, "www-data", "/var/tmp", "hello")
	u.run("base:1", "sh", "-c", "id -u; stat -c '%U %g %a' /etc/passwd /root; head -c 5 /etc/shadow; echo; "+
		"echo x >/new; chown 33:33 /new /etc/debian_version; stat -c %u /new /etc/debian_version; "+
		"rm -r /usr/share/doc; ls /usr/share | grep -c doc$").
		gives(1, "0", "root 0 644", "root 0 700", "root:", "33", "33", "0")
	shared := filepath.Join(u.dir, "shared")
	if err := errors.Join(os.Mkdir(shared, 0o700), os.Chown(shared, 1234, 1234)); err != nil {
		t.Fatal(err)
	}
	u.run("-v", shared+":/data", "-e", "A=b", "-w", "/data", "base:1", "sh", "-c", "echo $A >file; exit 3").gives(3)
	var stat syscall.Stat_t
	if err := syscall.Stat(filepath.Join(shared, "file"), &stat); err != nil || stat.Uid != 1234 {
		t.Errorf("a file of the container belongs to %d (%v), want the user", stat.Uid, err)
	}
	u.run("--net", "none", "--name", "c1", "base:1", "sh", "-c", "hostname; ls /sys/class/net").gives(0, "c1", "lo")
	u.run("--read-only", "base:1", "sh", "-c", "touch /x 2>/dev/null || echo refused").gives(0, "refused")
	u.run("-e", insideVariable+"=inside", "bare:1", "/program").gives(5, "inside")
	u.run("base:1", "/etc/passwd").fails(126, "ermission denied")
	u.run("base:1", "no-such-command").fails(127, "no-such-command")
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || !strings.Contains(string(table), u.store+"/trees/mapped-") {
		t.Errorf("no tree is mounted with mapped owners (%v): %s", err, table)
	}
	ref := pushImage(t, bare)
	r := u.run("--pull", "always", "-e", insideVariable+"=inside", ref, "/program")
	if r.code != 5 || r.out != "inside\n" {
		t.Errorf("--pull always: exit code %d, output %q, errors %q", r.code, r.out, r.errs)
	}
}

// The terminal, signals and the exit code of a signal are as for root.
func TestRootlessSignals(t *testing.T) { withEachRuntime(t, testRootlessSignals) }

func testRootlessSignals(t *testing.T) {
	u := newUser(t)
	s := startArgv(t, u.command("base:1", "sh", "-c", "trap 'echo got; exit 7' TERM"+waits))
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, lines := s.end(); code != 7 || !slices.Equal(lines, []string{"got"}) {
		t.Errorf("exit code %d, output %q; want 7 and one signal", code, lines)
	}
	// A run that was killed: the next one ends its container, and removes its files, whoever runs
	// in the container, and even if its runtime is slow to see that the container has ended.
	for _, as := range []string{"0", "33"} {
		s = startArgv(t, u.command("--name", "killed", "-u", as, "base:1", "sh", "-c", "trap '' TERM"+waits))
		if err := s.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = s.cmd.Wait()
		if len(u.leftovers()) == 0 {
			t.Error("a killed `lighter run` has left nothing: the test does not test what it says")
		}
		runtimes := u.runtimes()
		signal := func(s syscall.Signal) {
			for _, pid := range runtimes {
				_ = syscall.Kill(pid, s) // it may have ended
			}
		}
		signal(syscall.SIGSTOP)
		goesOn := time.AfterFunc(time.Second, func() { signal(syscall.SIGCONT) })
		u.run("--name", "killed", "base:1", "echo", "ran").gives(0, "ran")
		if goesOn.Stop() || len(runtimes) == 0 {
			t.Errorf("the next run did not wait for the runtimes %d of the killed one", runtimes)
		}
		eventually.Holds(t, "the end of the killed container", func() bool { return len(u.leftovers()) == 0 })
		s.end()
	}
	p := newTerminal(t)
	cmd := p.run(u.command("base:1", "sh", "-c", "tty; stty size; read line; echo \"<$line>\"; exit 6")...)
	p.shows("33 77")
	p.types("typed\r")
	p.shows("<typed>")
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 6 {
		t.Errorf("on a terminal: %v, want exit code 6", err)
	}
}

// A container reads on while its node is stopped, killed and replaced, and after the node has
// unmounted the image that nobody else uses.
func TestRootlessNodeEnds(t *testing.T) {
	want := run(t, "run", "base:1", "sha256sum", "/usr/bin/bash", "/usr/bin/dpkg").out
	u := newUser(t, "--directory-idle", "1s")
	fifo := filepath.Join(u.dir, "fifo")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o644), os.Chmod(fifo, 0o644)); err != nil {
		t.Fatal(err)
	}
	next := func() {
		if err := os.WriteFile(fifo, []byte("next\n"), 0); err != nil {
			t.Error(err)
		}
	}
	s := startArgv(t, u.command("-v", fifo+":/fifo", "base:1", "sh", "-c",
		"echo ready; read line </fifo; sha256sum /usr/bin/bash; read line </fifo; sha256sum /usr/bin/dpkg"))
	eventually.Holds(t, "the node to unmount the image", func() bool {
		table, err := os.ReadFile("/proc/self/mountinfo")
		return err == nil && !strings.Contains(string(table), u.store+"/trees/mapped-")
	})
	u.stopNode()
	u.startNode()
	next()
	if err := u.node.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = u.node.Wait() // it was killed
	u.startNode()
	next()
	if code, lines := s.end(); code != 0 || strings.Join(lines, "\n")+"\n" != want {
		t.Errorf("exit code %d, output %q; want %q", code, lines, want)
	}
}

// What is missing is named, with the way out.
func TestRootlessRefusals(t *testing.T) {
	u := newUser(t)
	u.run("none:1", "true").fails(125, "no image in the image store "+u.store, "none:1", "--pull always")
	u.run("--memory", "64MiB", "base:1", "true").fails(125, "need root", "systemd-run --user --scope")
	u.run("--image-store", "/no/store", "base:1", "true").fails(125, "/no/store", "image_store")
	u.run("--platform", "linux/arm64", "base:1", "true").fails(125, "--platform")
	execute(t, "", append(slices.Clone(u.as), lighter, "bundle", "base:1", "/tmp/b")...).fails(1, "a bundle needs root")
	u.stopNode()
	u.run("base:1", "true").fails(125, "the node of image store "+u.store+" does not run")
	u.startNode()
	u.run("base:1", "echo", "again").gives(0, "again")
	unprivileged.Hide(t, u.dir, "/etc/subuid", "somebody:200000:65536\n")
	u.run("base:1", "true").fails(125, "joe", "usermod --add-subuids")
}
