package site

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The program starts itself twice: as process 1 of the enclosure, which only
// collects the dead, and as what does the work. These variables tell which is
// which, and where the enclosure's directory is.
const (
	stageVariable = "LIGHTER_SITE_STAGE"
	dirVariable   = "LIGHTER_SITE_DIR"
	stageInit     = "init"
	stageInside   = "inside"
)

// workInside is where an enclosure has WORK: a path that is short, however long
// WORK's is, because sockets lie below it, and the kernel allows those 107 bytes.
const workInside = "/run/work"

// endTimeout is how long the program in an enclosure may take to end when it is told to.
const endTimeout = 2 * stopTimeout

// enclosure is the enclosure's directory, once inside.
var enclosure string

// EnclosedWith is Enclosed for tests that share what prepare makes in the
// enclosure, and stop ends.
func EnclosedWith(prepare func() (stop func() error, err error), run func() int) int {
	return Enclosed(func() int {
		stop, err := prepare()
		if err != nil {
			fmt.Fprintln(os.Stderr, "prepare:", err)
			return 1
		}
		code := run()
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, "end what was prepared:", err)
			return 1
		}
		return code
	})
}

// Enclosed runs the program again in an enclosure, there calls run, and returns
// its result as the exit code. A test's TestMain is
//
//	func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }
//
// Call it before anything else: what was done before is done again inside.
func Enclosed(run func() int) int {
	var code int
	var err error
	switch os.Getenv(stageVariable) {
	case stageInit:
		if os.Getpid() != 1 {
			err = errors.New("the environment says that this is process 1, which it is not")
			break
		}
		code, err = beInit()
	case stageInside:
		enclosure = os.Getenv(dirVariable)
		if err = errors.Join(os.Unsetenv(stageVariable), os.Setenv("TMPDIR", filepath.Join(enclosure, "tmp"))); err == nil {
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

// enclose starts process 1 of an enclosure, waits for its end and removes what
// namespaces do not take with them: the directory and the cgroups.
func enclose() (code int, err error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("a site needs root: it mounts, and makes namespaces")
	}
	work, err := Work()
	if err != nil {
		return 0, err
	}
	dir, err := makeDirectory(work)
	if err != nil {
		return 0, fmt.Errorf("make the enclosure's directory: %w", err)
	}
	defer func() { err = errors.Join(err, removeDirectory(dir.Name()), dir.Close()) }()

	// The kernel tells process 1 when this thread ends, not when this process does.
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
		Pdeathsig:  syscall.SIGTERM, // not SIGKILL: it has to end what nothing else can
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make the enclosure: %w", err)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may just have ended
		}
	}()
	defer func() { signal.Stop(signals); close(signals) }()
	return exitCode(cmd.Wait())
}

// makeDirectory makes WORK/site-PID and locks it for as long as the returned
// file is open. Directories that nobody has locked are of enclosures that were
// killed, and are removed.
func makeDirectory(work string) (*os.File, error) {
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	// One at a time: a directory that is not locked yet must not be taken for a dead one.
	turn, err := os.OpenFile(filepath.Join(work, ".sites"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	defer turn.Close()
	if err := unix.Flock(int(turn.Fd()), unix.LOCK_EX); err != nil {
		return nil, err
	}
	old, err := filepath.Glob(filepath.Join(work, "site-*"))
	if err != nil {
		return nil, err
	}
	for _, path := range old {
		dir, err := lockDirectory(path)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
			continue // it lives, or has just ended
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

// beInit prepares the namespaces, starts the program in them, and waits for it
// while it collects orphans: containerd's shims are some. When it ends, the kernel
// kills all that is left, but not who waits for a FUSE server that is dead too.
func beInit() (int, error) {
	signals := make(chan os.Signal, 8) // from the first moment: process 1 is not ended by a signal that it does not know
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

// passSignals tells the program what process 1 is told, and ends it if it does not
// end by itself then.
func passSignals(child int, signals <-chan os.Signal) {
	for s := range signals {
		_ = syscall.Kill(child, s.(syscall.Signal)) // it may just have ended
		time.AfterFunc(endTimeout, func() { _ = syscall.Kill(child, syscall.SIGKILL) })
	}
}

// prepareNamespaces makes what is mounted from here on invisible outside, and
// gives /proc and /run a content of the enclosure's own: containerd and runc
// keep sockets and states below /run whatever they are told.
func prepareNamespaces() error {
	// Before /run is hidden: it may be in an enclosure's.
	work, err := unix.Open(filepath.Dir(os.Getenv(dirVariable)), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the enclosure's directory: %w", err)
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
	if err := errors.Join(os.Mkdir(workInside, 0o755), unix.Mount("/proc/self/fd/"+strconv.Itoa(work), workInside, "", unix.MS_BIND|unix.MS_REC, "")); err != nil {
		return fmt.Errorf("mount %s: %w", workInside, err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up: %w: %s", err, out)
	}
	return nil
}

// removeCgroups removes the cgroups that runc left: those of containers that
// were killed with the enclosure, and the parent of all of them.
func removeCgroups(parent string) error {
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + parent, "/sys/fs/cgroup/" + parent} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			children, err := filepath.Glob(dir + "/*/cgroup.procs")
			if err != nil {
				return err
			}
			for _, child := range children {
				errs = append(errs, os.Remove(filepath.Dir(child)))
			}
			errs = append(errs, os.Remove(dir))
		}
	}
	return errors.Join(errs...)
}

// Work returns the directory of what tests need: tools/, images/. It is
// $LIGHTER_WORK, or work/ in the module that the program is started in.
func Work() (string, error) {
	if dir := os.Getenv("LIGHTER_WORK"); dir != "" {
		return filepath.Abs(dir)
	}
	module, err := Module()
	if err != nil {
		return "", err
	}
	return filepath.Join(module, "work"), nil
}

// Module returns the directory of the module that the program is started in.
func Module() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, stat := os.Stat(filepath.Join(dir, "go.mod")); stat == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("start this in the repository, or set LIGHTER_WORK")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// Binary returns the path of the lighter that `make build` made.
func Binary() (string, error) {
	module, err := Module()
	return filepath.Join(module, "bin/lighter"), err
}
