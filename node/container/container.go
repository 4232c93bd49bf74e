// Package container runs a container of an image with nothing but runc or crun (`lighter run`).
//
// Run makes a bundle (package bundle) in a directory of its own, runs it in the foreground, passes
// on the terminal, signals and the exit code, and removes everything again. If the process is
// killed, the next Run removes what it has left, and ends its container: a container does not
// outlive its `lighter run` for longer. A lock on the container's directory shows that its process
// lives.
//
// Without root, Run runs the container in a user namespace (rootless.go). It neither restarts
// containers nor runs them in the background.
package container

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"lighter/node/bundle"
)

// Exit codes of Run in addition to those of processes, as Docker has them.
const (
	ExitFailed        = 125 // the container could not be run
	ExitNotExecutable = 126 // its command cannot be executed
	ExitNotFound      = 127 // its command does not exist
)

// Options say which container to run.
type Options struct {
	Bundle  bundle.Options
	State   string // directory of the containers' directories; default: root's, or the user's own
	Store   string // image store that has the images of containers without root
	Name    string // default: a random name
	Runtime string // runc or crun, as a name or a path; default: the first of them that is installed
	// Interactive passes standard input on. If it is a terminal, it is passed on in any case.
	Interactive bool
	// Terminal gives the container a terminal. If standard input and output are terminals, it gets
	// one in any case.
	Terminal bool
}

// Run runs a container until its process ends, and returns the exit code of the process. If ctx is
// done before the process starts, Run gives up. Later, ctx has no effect: signals reach the
// process. Without root, Run replaces this process by the same command in a user namespace.
func Run(ctx context.Context, o Options) (code int, err error) {
	dir, err := stateDir(o.State)
	if err != nil {
		return ExitFailed, err
	}
	s := state{dir: dir, warn: o.Bundle.Notice}
	if os.Geteuid() != 0 {
		return ExitFailed, s.enter(ctx)
	}
	path, err := findRuntime(o.Runtime)
	if err != nil {
		return ExitFailed, err
	}
	if o.Terminal && !term.IsTerminal(int(os.Stdin.Fd())) {
		return ExitFailed, errors.New("--tty needs a terminal as standard input")
	}
	if isRootless() {
		o.Bundle.Store, o.Bundle.Spec.Rootless = o.Store, true
		if err := o.Bundle.Spec.Check(); err != nil {
			return ExitFailed, err
		}
	}
	home, err := s.open(ctx, o.Name, path)
	if err != nil {
		return ExitFailed, err
	}
	defer func() {
		if failed := s.close(context.WithoutCancel(ctx), home); failed != nil {
			s.warn(fmt.Sprintf("cannot remove container %s (the next `lighter run` tries again): %v", home.name(),
				failed))
		}
	}()
	o.complete(home.name())
	if err := bundle.Make(ctx, home.bundle(), o.Bundle); err != nil {
		return ExitFailed, err
	}
	return engine(path).run(ctx, home, o)
}

// complete sets the options of the bundle that depend on the terminal, the name and the machine.
func (o *Options) complete(name string) {
	isTerminal := term.IsTerminal(int(os.Stdin.Fd()))
	o.Interactive = o.Interactive || isTerminal
	o.Terminal = o.Terminal || isTerminal && term.IsTerminal(int(os.Stdout.Fd()))
	b := &o.Bundle
	b.ID, b.Spec.Terminal = name, o.Terminal
	b.Spec.Hostname = cmp.Or(b.Spec.Hostname, name)
	b.Spec.Files = fileLimit()
	if columns, rows, err := term.GetSize(int(os.Stdin.Fd())); err == nil {
		b.Spec.Rows, b.Spec.Columns = uint(rows), uint(columns) //nolint:gosec // they are not negative
	}
}

// fileLimit returns this process's hard limit of open files, or 0 if it is unknown. A runtime may
// not be allowed to raise it.
func fileLimit() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return limit.Max
}

// validName matches the names of containers: runtimes accept them, and they are host names.
var validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9.-]{0,62}$`)

// CheckName returns an error unless a container can have the name.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("%q is no name of a container: want 1 to 63 letters, digits, dots and hyphens, and a "+
			"letter or digit first", name)
	}
	return nil
}

func randomName() string { return "run-" + strings.ToLower(rand.Text()[:10]) }

// findRuntime returns the path of an OCI runtime.
func findRuntime(name string) (string, error) {
	names := []string{"runc", "crun"}
	if name != "" {
		names = []string{name}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	if name != "" {
		return "", fmt.Errorf("OCI runtime %s is not installed", name)
	}
	return "", errors.New("neither runc nor crun is installed: install one of them, or name another OCI runtime " +
		"with --runtime")
}
