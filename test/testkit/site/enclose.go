package site

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/workdir"
)

// The program starts itself twice: as process 1 of the enclosure, which reaps processes and
// forwards signals, and as the process that runs the tests. Environment variables tell each process
// its stage, and the path of the enclosure's directory.
const (
	stageVariable = "LIGHTER_SITE_STAGE"
	dirVariable   = "LIGHTER_SITE_DIR"
	stageInit     = "init"   // the stage of process 1
	stageInside   = "inside" // the stage of the process that runs the tests
)

// workInside is the mount point of WORK in an enclosure. It is short because sockets lie below it,
// and the kernel limits their paths to 107 bytes.
const workInside = "/run/work"

// endTimeout is the time from the first signal until the program in the enclosure is killed.
const endTimeout = 2 * stopTimeout

// enclosure is the path of the enclosure's directory. It is empty outside of an enclosure.
var enclosure string

// EnclosedWith does what Enclosed does, for tests that share a fixture: prepare makes the fixture
// in the enclosure, and stop ends it.
func EnclosedWith(prepare func() (stop func() error, err error), run func() int) int {
	return Enclosed(func() int {
		stop, err := prepare()
		if err != nil {
			fmt.Fprintln(os.Stderr, "prepare:", err)
			return 1
		}
		code := run()
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, "end the shared fixture:", err)
			return 1
		}
		return code
	})
}

// Enclosed starts the program again in an enclosure, calls run there, and returns run's result,
// which is the exit code. A test's TestMain is
//
//	func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }
//
// Call Enclosed first: the program runs three times, and each time it executes what precedes the
// call.
func Enclosed(run func() int) int {
	var code int
	var err error
	switch os.Getenv(stageVariable) {
	case stageInit:
		if os.Getpid() != 1 {
			err = errors.New("LIGHTER_SITE_STAGE is init, but this is not process 1")
			break
		}
		code, err = beInit()
	case stageInside:
		enclosure = os.Getenv(dirVariable)
		if err = errors.Join(os.Unsetenv(stageVariable),
			os.Setenv("TMPDIR", filepath.Join(enclosure, "tmp"))); err == nil {
			code = run()
		}
	default:
		code, err = enclose()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		return 1
	}
	return code
}

// enclose starts process 1 of an enclosure, waits for its end, and removes the enclosure's
// directory and cgroups. The kernel removes the rest with the namespaces.
func enclose() (code int, err error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("make an enclosure: it needs root, for mounts and namespaces")
	}
	work, err := workdir.Path()
	if err != nil {
		return 0, err
	}
	dir, err := makeDirectory(work)
	if err != nil {
		return 0, fmt.Errorf("make the enclosure's directory: %w", err)
	}
	defer func() { err = errors.Join(err, removeDirectory(dir.Name()), dir.Close()) }()

	// The kernel sends Pdeathsig when this thread ends, not when this process ends.
	runtime.LockOSThread()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self)
	cmd.Args = os.Args
	cmd.Env = append(os.Environ(), stageVariable+"="+stageInit, dirVariable+"="+dir.Name())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGTERM, // not SIGKILL: process 1 has to abort FUSE connections
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make the enclosure: %w", err)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // process 1 may just have ended
		}
	}()
	defer func() { signal.Stop(signals); close(signals) }()
	return exitCode(cmd.Wait())
}

// makeDirectory makes WORK/site-PID and locks it while the returned file is open. It removes
// directories that are not locked: their enclosures were killed.
func makeDirectory(work string) (*os.File, error) {
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	// While .sites is locked, no other program removes the new directory, which is not locked yet.
	lock, err := os.OpenFile(filepath.Join(work, ".sites"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, err
	}
	old, err := filepath.Glob(filepath.Join(work, "site-*"))
	if err != nil {
		return nil, err
	}
	for _, path := range old {
		dir, err := lockDirectory(path)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
			continue // its enclosure runs, or has just ended
		}
		if err != nil {
			return nil, err
		}
		if err := errors.Join(removeDirectory(path), dir.Close()); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(work, "site-"+strconv.Itoa(os.Getpid()))
	if err := os.MkdirAll(filepath.Join(path, "tmp"), 0o755); err != nil {
		return nil, err
	}
	return lockDirectory(path)
}

func lockDirectory(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// removeDirectory removes an enclosure's directory, and the cgroups of its containers.
func removeDirectory(dir string) error {
	return errors.Join(os.RemoveAll(dir), removeCgroups(filepath.Base(dir)))
}

func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// beInit prepares the namespaces, starts the program in them, and waits for it. Meanwhile it reaps
// orphans, containerd's shims for example. When process 1 ends, the kernel kills all other
// processes. SIGKILL does not end processes that wait for a dead FUSE server, so beInit aborts all
// FUSE connections before it returns.
func beInit() (int, error) {
	signals := make(chan os.Signal, 8) // first, because the kernel drops signals that process 1 does not handle
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if err := prepareNamespaces(); err != nil {
		return 0, err
	}
	dir := filepath.Join(workInside, filepath.Base(os.Getenv(dirVariable)))
	if err := errors.Join(os.Setenv(dirVariable, dir), os.Setenv("LIGHTER_WORK", workInside)); err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	if err := os.Setenv(stageVariable, stageInside); err != nil {
		return 0, err
	}
	child, err := syscall.ForkExec(self, os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, fmt.Errorf("start the program in the enclosure: %w", err)
	}
	defer abortConnections()
	go passSignals(child, signals)
	go watchHang(child)
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the program in the enclosure: %w", err)
		case pid == child && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == child:
			return status.ExitStatus(), nil
		}
	}
}

// passSignals forwards process 1's signals to the program, and kills the program if it does not end
// in time.
func passSignals(child int, signals <-chan os.Signal) {
	for s := range signals {
		_ = syscall.Kill(child, s.(syscall.Signal)) // the program may just have ended
		time.AfterFunc(endTimeout, func() { _ = syscall.Kill(child, syscall.SIGKILL) })
	}
}

// prepareNamespaces makes mounts private and mounts a new /proc and /run. containerd and runc keep
// some sockets and states below /run even if they are configured to use other directories.
func prepareNamespaces() error {
	// Open WORK before the new /run hides it: inside another enclosure, WORK is below /run.
	work, err := unix.Open(filepath.Dir(os.Getenv(dirVariable)), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the directory that contains the enclosure's: %w", err)
	}
	defer unix.Close(work)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := errors.Join(os.Mkdir(workInside, 0o755),
		unix.Mount("/proc/self/fd/"+strconv.Itoa(work), workInside, "", unix.MS_BIND|unix.MS_REC, "")); err != nil {
		return fmt.Errorf("mount %s: %w", workInside, err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up: %w: %s", err, out)
	}
	return nil
}

// removeCgroups removes the cgroups of what was killed with the enclosure, and their parent.
func removeCgroups(parent string) error {
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + parent, "/sys/fs/cgroup/" + parent} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			var groups []string
			errs = append(errs, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					groups = append(groups, path)
				}
				return err
			}))
			for _, group := range slices.Backward(groups) {
				errs = append(errs, os.Remove(group))
			}
		}
	}
	return errors.Join(errs...)
}

// Binary returns the path of the lighter binary that `make build` makes.
func Binary() (string, error) {
	module, err := workdir.Module()
	return filepath.Join(module, "bin/lighter"), err
}
