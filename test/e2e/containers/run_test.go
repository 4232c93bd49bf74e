//go:build e2e

package containers

import (
	"bufio"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// An image's config says what runs, as whom, and where. The container may write, and nothing of it
// is left, with a running node and without one.
func TestImageDecides(t *testing.T) { withEachRuntime(t, testImageDecides) }

func testImageDecides(t *testing.T) {
	run(t, "run", "app:1").gives(0, "www-data", "/var/tmp", "hello")
	alone(t, "run", "app:1").gives(0, "www-data", "/var/tmp", "hello")
	run(t, "run", "base:1", "sh", "-c", "echo new > /etc/new && cat /etc/new && id -u").gives(0, "new", "0")
	run(t, "run", "base:1", "cat", "/etc/new").fails(1, "No such file")
}

// Flags override the image's config.
func TestFlags(t *testing.T) { withEachRuntime(t, testFlags) }

func testFlags(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FROM_OUTSIDE", "outside")
	run(t, "run", "-e", "GREETING=bye", "-e", "FROM_OUTSIDE", "-u", "nobody:9", "-w", "/new/dir", "-v", dir+":/data:ro",
		"--net", "none", "--name", "c1.example", "app:1",
		"id -un; id -g; pwd; echo $GREETING $FROM_OUTSIDE; cat /data/file; hostname; ls /sys/class/net; touch /data/x").
		gives(1, "nobody", "9", "/new/dir", "bye outside", "of the host", "c1.example", "lo")
	run(t, "run", "--read-only", "-v", dir+":/data", "base:1", "sh", "-c",
		"touch /x 2>/dev/null || echo refused; echo more >> /data/file; tail -n1 /data/file").
		gives(0, "refused", "more")
	limits := "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes memory.max cpu/cpu.cfs_quota_us cpu.max 2>/dev/null"
	got := run(t, "run", "--memory", "64MiB", "--cpus", "0.5", "base:1", "sh", "-c", limits+"; true")
	if lines := strings.Fields(got.out); len(lines) < 2 || lines[0] != "67108864" || lines[1] != "50000" {
		t.Errorf("limits are %q (%s), want 64 MiB and half a processor", got.out, got.errs)
	}
	run(t, "run", "--entrypoint", "/bin/echo", "app:1", "other").gives(0, "other")
	host := execute(t, "", "hostname")
	run(t, "run", "base:1", "hostname").gives(0, strings.TrimSpace(host.out))
	// Standard input is passed on only if the user says so.
	execute(t, "text\n", command(nodeRoot, "run", "-i", "base:1", "cat")...).gives(0, "text")
	execute(t, "text\n", command(nodeRoot, "run", "base:1", "cat")...).gives(0)
}

// An image without a shell, users or a command runs if a command is named.
func TestBareImage(t *testing.T) { withEachRuntime(t, testBareImage) }

func testBareImage(t *testing.T) {
	run(t, "run", "-e", insideVariable+"=inside", "bare:1", "/program").gives(5, "inside")
	run(t, "run", "-u", "12:34", "-e", insideVariable+"=inside", "bare:1", "/program").gives(5, "inside")
	run(t, "run", "bare:1").fails(125, "neither entrypoint nor command")
	run(t, "run", "-u", "app", "bare:1", "/program").fails(125, `user "app"`, "no /etc/passwd")
}

// The exit code is that of the process, or Docker's if there is no process.
func TestExitCodes(t *testing.T) { withEachRuntime(t, testExitCodes) }

func testExitCodes(t *testing.T) {
	run(t, "run", "base:1", "sh", "-c", "exit 3").gives(3)
	run(t, "run", "base:1", "no-such-command").fails(127, "no-such-command")
	run(t, "run", "base:1", "/no/such/command").fails(127, "/no/such/command")
	run(t, "run", "base:1", "/etc/passwd").fails(126, "ermission denied")
	run(t, "run", "-u", "nobody-knows", "base:1", "true").fails(125, `user "nobody-knows" is not in the image's`)
	run(t, "run", "--no-such-flag", "base:1").fails(125, "--no-such-flag")
	run(t, "run").fails(125, "IMAGE is missing")
	run(t, "run", "-v", "data:/data", "base:1").fails(125, "no named volumes")
	run(t, "run", "--net", "bridge", "base:1").fails(125, "bridge")
	run(t, "run", "A:b:c", "true").fails(125, "image name")
	run(t, "run", "--platform", "linux/s390x", "base:1", "true").fails(125, "base:1")
	run(t, "run", "--runtime", "no-runtime", "base:1", "true").fails(125, "no-runtime is not installed")
	run(t, "run", "-t", "base:1", "true").fails(125, "terminal")
	run(t, "run", "--pull", "never", "none:1", "true").fails(125, `no hub has image "none:1"`)
}

// started is a container that has printed its first line.
type started struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// start starts a container whose script prints "ready".
func start(t *testing.T, root, script string, flags ...string) *started {
	t.Helper()
	return startArgv(t, command(root, "run", slices.Concat(flags, []string{"base:1", "sh", "-c", script})...))
}

// startArgv starts a container whose first line is "ready".
func startArgv(t *testing.T, argv []string) *started {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &started{cmd, bufio.NewScanner(out)}
	if !s.lines.Scan() || s.lines.Text() != "ready" {
		t.Fatalf("the container said %q, want ready", s.lines.Text())
	}
	return s
}

// end returns the exit code, and the lines that the container has printed since it was ready.
func (s *started) end() (code int, lines []string) {
	for s.lines.Scan() {
		lines = append(lines, s.lines.Text())
	}
	_ = s.cmd.Wait() // the exit code says how it ended
	return s.cmd.ProcessState.ExitCode(), lines
}

// waits is the end of a script that waits for signals.
const waits = "; echo ready; while :; do sleep 0.05; done"

// The process gets each signal once.
func TestSignals(t *testing.T) { withEachRuntime(t, testSignals) }

func testSignals(t *testing.T) {
	for signal, name := range map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGINT: "INT",
		syscall.SIGUSR1: "USR1", syscall.SIGHUP: "HUP"} {
		s := start(t, nodeRoot, "n=0; trap 'n=$((n+1)); echo got' "+name+"; trap 'echo $n; exit 7' USR2"+waits)
		if err := s.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if !s.lines.Scan() || s.lines.Text() != "got" {
			t.Errorf("%s: the container said %q, want got", name, s.lines.Text())
		}
		if err := s.cmd.Process.Signal(syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		if code, lines := s.end(); code != 7 || len(lines) != 1 || lines[0] != "1" {
			t.Errorf("%s: exit code %d, output %q; want 7 and one signal", name, code, lines)
		}
	}
}

// A `lighter run` that is killed leaves a container that the next one ends and removes, with its
// mounts, its files and its node.
func TestKilled(t *testing.T) { withEachRuntime(t, testKilled) }

func testKilled(t *testing.T) {
	for _, root := range []string{nodeRoot, "/no/node"} {
		s := start(t, root, "trap '' TERM; echo text >/file; sleep infinity & echo ready; wait", "--name", "killed")
		if err := s.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = s.cmd.Wait()
		if len(leftovers(t)) == 0 {
			t.Errorf("a killed `lighter run` has left nothing: the test does not test what it says")
		}
		run(t, "run", "--name", "killed", "base:1", "sh", "-c", "ls /file 2>/dev/null; echo ran").gives(0, "ran")
		if left := leftovers(t); len(left) > 0 {
			t.Errorf("left after the next run: %q", left)
		}
	}
}

// A container's name is taken while it runs. A container that runs is no leftover.
func TestTwoContainers(t *testing.T) { withEachRuntime(t, testTwoContainers) }

func testTwoContainers(t *testing.T) {
	s := start(t, nodeRoot, "true"+waits, "--name", "one")
	run(t, "run", "--name", "one", "base:1", "true").fails(125, "one", "--name")
	run(t, "run", "base:1", "echo", "two").gives(0, "two")
	execute(t, "", oci, "--root", filepath.Join(homes, "one", "engine.d"), "kill", "one", "KILL").gives(0)
	if code, _ := s.end(); code != 137 {
		t.Errorf("a process that was killed: exit code %d, want 137", code)
	}
}

// pushImage pushes an image to a registry that no hub knows.
func pushImage(t *testing.T, image v1.Image) (ref string) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	ref = strings.TrimPrefix(server.URL, "http://") + "/tools/other:1"
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, image); err != nil {
		t.Fatal(err)
	}
	return ref
}

// An image that no hub has is pulled as a whole, which one line says. --pull forbids it.
func TestPullsWhatNoHubHas(t *testing.T) {
	leavesNothing(t)
	image, err := changed(bare, func(c *v1.Config) {
		c.Cmd, c.User, c.Env = []string{"/program"}, "12", []string{insideVariable + "=inside"}
	})
	if err != nil {
		t.Fatal(err)
	}
	ref := pushImage(t, image)
	for _, r := range []result{run(t, "run", ref), alone(t, "run", ref)} {
		r.gives(5, "inside")
		if want := "lighter: no hub has " + ref + ": pulling all of " + ref; !strings.HasPrefix(r.errs, want) {
			t.Errorf("errors %q, want %q first", r.errs, want)
		}
	}
	run(t, "run", "--pull", "never", ref).fails(125, "no hub has image")
	if r := run(t, "run", "--pull", "always", ref); r.code != 5 || !strings.Contains(r.errs, "no hub is asked") {
		t.Errorf("--pull always: exit code %d, errors %q", r.code, r.errs)
	}
	run(t, "run", strings.Replace(ref, "tools/other", "tools/none", 1)).fails(125, "no hub has", "find image")
}

// If the disk is full, nothing is left, and the error says so.
func TestFullDisk(t *testing.T) {
	leavesNothing(t)
	ref := pushImage(t, bare)
	small := t.TempDir()
	if err := syscall.Mount("small", small, "tmpfs", 0, "size=2m,mode=700"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	}()
	r := run(t, "run", "--state", small, ref, "true")
	if r.code != 125 || !strings.Contains(r.errs, "no space left on device") {
		t.Errorf("exit code %d, errors %q; want 125 and the cause", r.code, r.errs)
	}
	if left, err := os.ReadDir(small); err != nil || len(left) > 0 {
		t.Errorf("left in the directory of containers: %v (%v)", left, err)
	}
	// A container that fills the disk itself gets the error. Its files are removed, too.
	run(t, "run", "--state", small, "base:1", "sh", "-c", "cat /dev/zero >/zeros 2>/dev/null || echo full").
		gives(0, "full")
}

// If the hub does not answer, the image is not pulled from elsewhere.
func TestHubThatIsAway(t *testing.T) {
	leavesNothing(t)
	r := alone(t, "run", "--hub", "http://127.0.0.1:1", "base:1", "true")
	r.fails(125, `look up image "base:1"`, "refused")
}
