//go:build e2e

package site

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/workdir"
)

func TestMain(m *testing.M) { os.Exit(Enclosed(m.Run)) }

// startOverlay starts a site without hub and node. Its registry has the image base.
func startOverlay(t *testing.T) *Site {
	t.Helper()
	s, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Push(t.Context(), filepath.Join(work, "images/base"), "base"); err != nil {
		t.Fatal(err)
	}
	return s
}

// pull pulls base, and returns the number of bytes that the machine has received meanwhile.
func pull(t *testing.T, m *Machine) int64 {
	t.Helper()
	before, err := m.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Pull(t.Context(), Overlayfs, Reference("base")); err != nil {
		t.Fatal(err)
	}
	after, err := m.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return after - before
}

// A machine runs containers of a pulled image. Wipe and Keep empty the machine's disk, and Restore
// brings back the disk that Keep saved.
func TestRunWipeKeepAndRestore(t *testing.T) {
	s := startOverlay(t)
	whole := pull(t, s.Machine)
	if whole < 10<<20 {
		t.Errorf("the first pull received %d bytes over the link, want more than 10 MiB", whole)
	}
	ran, err := s.Machine.Run(t.Context(), Overlayfs, Reference("base"), "echo", "hello")
	if err != nil || ran.Output != "hello\n" {
		t.Fatalf("echo printed %q (%v), want %q", ran.Output, err, "hello\n")
	}
	c, err := s.Machine.StartContainer(t.Context(), Overlayfs, Reference("base"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := c.Exec(t.Context(), "cat", "/etc/debian_version"); err != nil || !strings.HasPrefix(out, "12") {
		t.Errorf("cat /etc/debian_version printed %q (%v), want a version 12", out, err)
	}
	if _, err := os.Stat(filepath.Join(c.Root, "etc/debian_version")); err != nil {
		t.Error(err)
	}
	if again := pull(t, s.Machine); again > whole/10 {
		t.Errorf("the pull of a present image received %d bytes, want at most %d", again, whole/10)
	}
	if err := s.Machine.Wipe(t.Context()); err != nil { // while a container runs
		t.Fatal(err)
	}
	if again := pull(t, s.Machine); again < whole*9/10 {
		t.Errorf("the pull after Wipe received %d bytes, want about %d", again, whole)
	}
	if err := s.Machine.Keep(t.Context(), "pulled"); err != nil {
		t.Fatal(err)
	}
	if again := pull(t, s.Machine); again < whole*9/10 {
		t.Errorf("the pull after Keep received %d bytes, want about %d", again, whole)
	}
	if err := s.Machine.Restore(t.Context(), "pulled"); err != nil {
		t.Fatal(err)
	}
	if again := pull(t, s.Machine); again > whole/10 {
		t.Errorf("the pull after Restore received %d bytes, want at most %d", again, whole/10)
	}
	if ran, err := s.Machine.Run(t.Context(), Overlayfs, Reference("base"), "echo", "hello"); err != nil ||
		ran.Output != "hello\n" {
		t.Errorf("echo after Restore printed %q (%v), want %q", ran.Output, err, "hello\n")
	}
}

// startedVariable is set in the child processes that the tests below start: the child enters an
// enclosure and runs the same test.
const startedVariable = "LIGHTER_SITE_TEST_KILLED"

func TestKilledEnclosureLeavesNothing(t *testing.T) {
	if os.Getenv(startedVariable) != "" {
		s := startOverlay(t)
		pull(t, s.Machine)
		c, err := s.Machine.StartContainer(t.Context(), Overlayfs, Reference("base"), "sleep", "infinity")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("running in", enclosure, c.ID)
		select {}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), startedVariable+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	var dir, id string
	if _, scan := fmt.Sscanf(line, "running in %s %s", &dir, &id); err != nil || scan != nil {
		t.Fatalf("first line of the child: got %q (%v), want its directory and a container", line, err)
	}
	if pids, err := processes("", dir); err != nil || len(pids) == 0 {
		t.Fatalf("processes of the child: %v, %v, want some", pids, err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // always an error after SIGKILL
	awaitNothing(t, dir)

	// The next enclosure removes the killed enclosure's directory.
	made, err := makeDirectory(filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(removeDirectory(made.Name()), made.Close()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat of %s after another enclosure has started: %v, want ErrNotExist", dir, err)
	}
}

// A program ends while one of its threads waits for the program's own FUSE server. Its enclosure
// ends, too, with the program's exit code.
func TestProgramWaitingForItself(t *testing.T) {
	const status = 7
	if os.Getenv(startedVariable) != "" {
		hangOnItself(t)
		os.Exit(status)
	}
	// SIGKILL does not end the waiting thread; process 1 has to abort the FUSE connection.
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), startedVariable+"=1")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != status {
		t.Errorf("got %v, want exit code %d: %s", err, status, out)
	}
}

// hangOnItself leaves a thread that waits for the answer to a FUSE request, which this process has
// read but does not answer.
func hangOnItself(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("hang", dir, "fuse.hang", 0,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<17)
	if _, err := unix.Read(fd, b); err != nil { // INIT
		t.Fatal(err)
	}
	init := make([]byte, 16+64) // its answer: a header, and version 7.31
	binary.NativeEndian.PutUint32(init, uint32(len(init)))
	copy(init[8:16], b[8:16])
	binary.NativeEndian.PutUint32(init[16:], 7)
	binary.NativeEndian.PutUint32(init[20:], 31)
	binary.NativeEndian.PutUint32(init[36:], 4096)
	if _, err := unix.Write(fd, init); err != nil {
		t.Fatal(err)
	}
	go func() {
		var stat unix.Statfs_t
		_ = unix.Statfs(dir, &stat) // never returns
	}()
	if _, err := unix.Read(fd, b); err != nil {
		t.Fatal(err)
	}
}

// awaitNothing waits until the kernel has removed the processes and mounts of the enclosure in dir.
func awaitNothing(t *testing.T, dir string) {
	t.Helper()
	var left []string
	for range 1000 {
		var err error
		if left, err = (&Site{Dir: dir}).leftovers(); err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the killed enclosure has left behind: %s", strings.Join(left, "; "))
}

// A machine is stopped although a read of a tree is in flight: the node ends, and the read would
// wait for the next node.
func TestStopWithAReadInFlight(t *testing.T) {
	lighter, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), Options{Lighter: lighter})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	dir, m := t.TempDir(), s.Machine
	if err := s.Hub.AddLayout(t.Context(), filepath.Join(work, "images/base"), "base"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Lighter(t.Context(), "mount", "base:latest", dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Hub.Freeze(); err != nil {
		t.Fatal(err)
	}
	reader := exec.Command("grep", "-rq", "no such text", filepath.Join(dir, "usr"))
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "a read", func() bool {
		var st struct {
			Mounts []struct {
				Device struct {
					Missed int64 `json:"missedBytes"`
				}
			}
		}
		err := m.NodeStatus(t.Context(), &st)
		return err == nil && len(st.Mounts) == 1 && st.Mounts[0].Device.Missed > 0
	})
	if err := reader.Process.Kill(); err != nil { // the kernel's read-ahead stays in flight
		t.Fatal(err)
	}
	_ = reader.Wait() // it was killed
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- m.stop(t.Context()) }()
	eventually.Holds(t, "the end of the machine", func() bool { return len(stopped) == 1 })
	if err := <-stopped; err == nil || !strings.Contains(err.Error(), "mounted") {
		t.Errorf("got %v, want an error that says that a tree was still mounted", err)
	}
	if err := s.Hub.Thaw(); err != nil {
		t.Fatal(err)
	}
}

// leftovers lists the processes and mounts of a running site.
func TestLeftovers(t *testing.T) {
	s := startOverlay(t)
	left, err := s.leftovers()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(left, "\n")
	for _, what := range []string{"containerd --config", "registry serve", "mount " +
		filepath.Join(s.Dir, "registry")} {
		if !strings.Contains(all, what) {
			t.Errorf("leftovers do not contain %q:\n%s", what, all)
		}
	}
}
