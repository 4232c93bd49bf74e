package container

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The exit code says why a process could not be started, as far as runtimes say it.
func TestCodesOfFailures(t *testing.T) {
	for message, want := range map[string]int{
		`unable to start container process: exec: "foo": executable file not found in $PATH`: ExitNotFound,
		`unable to start container process: exec: "/x": stat /x: no such file or directory`:  ExitNotFound,
		"executable file `foo` not found in $PATH: No such file or directory":                ExitNotFound,
		`unable to start container process: exec: "/etc/passwd": permission denied`:          ExitNotExecutable,
		`exec /x: exec format error`:                       ExitNotExecutable,
		`exec: "/etc": is a directory`:                     ExitNotExecutable,
		`error mounting "proc": no such file or directory`: ExitFailed,
		`container with given ID already exists`:           ExitFailed,
	} {
		if got := codeOf(message); got != want {
			t.Errorf("%s: exit code %d, want %d", message, got, want)
		}
	}
}

// The last error in a runtime's log is its failure. Warnings and other lines are not.
func TestFailureInTheLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if got := failure(log); got != "" {
		t.Errorf("without a log: %q, want nothing", got)
	}
	for text, want := range map[string]string{
		"": "", "{\"level\":\"warning\",\"msg\":\"w\"}\nno JSON\n": "",
		"{\"level\":\"error\",\"msg\":\"a\"}\n{\"level\":\"error\",\"msg\":\"b\"}\n": "b",
	} {
		if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := failure(log); got != want {
			t.Errorf("log %q: %q, want %q", text, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "run-1.example", randomName(), strings.Repeat("a", 63)} {
		if err := CheckName(name); err != nil {
			t.Errorf("%s: got %v, want no error", name, err)
		}
	}
	for _, name := range []string{"", "..", "-a", "a/b", "a b", "a_b", strings.Repeat("a", 64)} {
		if err := CheckName(name); err == nil {
			t.Errorf("%q: got no error", name)
		}
	}
}

// A container's directory is removed by its own process, or by the next one if that is dead. The
// directory of a process that lives stays, and its name is taken.
func TestDirectoriesOfDeadProcesses(t *testing.T) {
	var warned []string
	s := state{dir: filepath.Join(t.TempDir(), "state"), warn: func(line string) { warned = append(warned, line) }}
	lives, err := s.open(t.Context(), "lives", "runc")
	if err != nil {
		t.Fatal(err)
	}
	dead, err := s.open(t.Context(), "dead", "runc")
	if err != nil {
		t.Fatal(err)
	}
	dead.lock.Close() // as the end of its process does
	if _, err := s.open(t.Context(), "lives", "runc"); err == nil || !strings.Contains(err.Error(), "--name") {
		t.Errorf("a name that is taken: got %v, want an error with --name", err)
	}
	if _, err := os.Stat(dead.dir); !os.IsNotExist(err) {
		t.Errorf("the directory of a dead process is left: %v", err)
	}
	again, err := s.open(t.Context(), "dead", "runc")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []home{lives, again} {
		if err := s.close(t.Context(), h); err != nil {
			t.Errorf("close %s: %v", h.name(), err)
		}
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 || len(warned) > 0 {
		t.Errorf("left %v (%v), warnings %q; want nothing", left, err, warned)
	}
}

// Each failure of unshare has its own way out.
func TestWayOut(t *testing.T) {
	for printed, want := range map[string]string{
		"unshare: you (user 1234) don't exist.":                         "/etc/passwd",
		"unshare: failed to find subuid range; /etc/subuid":             "usermod",
		"newuidmap: uid range [1-65536) -> [100000-165535) not allowed": "usermod",
		"unshare: unrecognized option '--map-auto'":                     "util-linux",
		"unshare: unshare failed: Operation not permitted":              "sysctl",
	} {
		if got := wayOut([]byte(printed)); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", printed, got, want)
		}
	}
}

// A killed run's directory is found from every working directory.
func TestStateIsAbsolute(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if got, err := stateDir("state"); err != nil || got != filepath.Join(dir, "state") {
		t.Errorf("got %s, %v; want state in %s", got, err, dir)
	}
	t.Setenv("HOME", "home")
	t.Setenv("XDG_DATA_HOME", "data")
	if got, err := stateDir(""); err == nil && !filepath.IsAbs(got) {
		t.Errorf("the default is %s, want an absolute path", got)
	}
}

// A directory that has files of others, or that others may write to, is refused, and nothing in it
// is touched.
func TestForeignDirectory(t *testing.T) {
	for what, prepare := range map[string]func(dir string) error{
		"a user's directory": func(dir string) error { return os.MkdirAll(filepath.Join(dir, "work/thesis"), 0o700) },
		"a user's file":      func(dir string) error { return os.WriteFile(filepath.Join(dir, "notes"), nil, 0o600) },
		"a FIFO":             func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600) },
		"writable by others": func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "engine.d"), 0o700), os.Chmod(dir, 0o777))
		},
	} {
		dir := t.TempDir()
		if err := prepare(dir); err != nil {
			t.Fatal(err)
		}
		s := state{dir: dir, warn: func(string) {}}
		if _, err := s.open(t.Context(), "", "runc"); err == nil {
			t.Errorf("%s: got no error", what)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%s: left %v (%v), want what was there", what, left, err)
		}
	}
}
