package container

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/term"
)

// engine is an OCI runtime: runc, crun, or another one with the same command line.
type engine string

// signalsAtOnce is how many signals may wait until they are passed on.
const signalsAtOnce = 16

// run runs a container's bundle until its process ends. The runtime prints its own errors, or run
// returns them.
func (e engine) run(ctx context.Context, h home, o Options) (code int, err error) {
	stdin := int(os.Stdin.Fd())
	isTerminal := term.IsTerminal(stdin)
	if isTerminal {
		if old, err := term.GetState(stdin); err == nil {
			defer func() { _ = term.Restore(stdin, old) }() // a killed runtime does not restore it
		}
	}
	signals := make(chan os.Signal, signalsAtOnce)
	signal.Notify(signals, passedOn(isTerminal)...)
	defer signal.Stop(signals)
	if ctx.Err() != nil { // from now on, signals reach the container
		return ExitFailed, context.Cause(ctx)
	}
	cmd := exec.Command(string(e), "--root", h.engineDir(), "--log", h.log(), "--log-format", "json", "run",
		"--bundle", h.bundle(), h.name())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if o.Interactive {
		cmd.Stdin = os.Stdin
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// If this process is killed, the runtime passes the signal on, and most containers end.
		Pdeathsig: syscall.SIGTERM,
		// A terminal sends its signals to all processes of this group. Without one, the runtime
		// gets each signal once: from this process.
		Setpgid: !isTerminal,
	}
	ended, err := start(cmd)
	if err != nil {
		return ExitFailed, fmt.Errorf("start the OCI runtime: %w", err)
	}
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // the runtime may just have ended
		case err := <-ended:
			return e.result(cmd.ProcessState, h, err)
		}
	}
}

// passedOn returns the signals that a container gets from this process. If standard input is a
// terminal, the terminal itself sends interrupts to the runtime, too.
func passedOn(isTerminal bool) []os.Signal {
	list := []os.Signal{syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		list = append(list, syscall.SIGHUP)
	}
	if !isTerminal {
		list = append(list, syscall.SIGINT, syscall.SIGQUIT)
	}
	return list
}

// start starts a command. The channel gets the result of its Wait. The kernel sends Pdeathsig when
// the thread that has started the command ends, so that thread stays until then.
func start(cmd *exec.Cmd) (ended <-chan error, err error) {
	started, done := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without unlock: the thread ends with this goroutine
		err := cmd.Start()
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	return done, <-started
}

// result returns the exit code of a container's process, from the end of the runtime. If the
// process could not be started, the code says why.
func (e engine) result(state *os.ProcessState, h home, err error) (int, error) {
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		return ExitFailed, fmt.Errorf("wait for the OCI runtime: %w", err)
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), fmt.Errorf("the OCI runtime was ended by a signal: %s", status.Signal())
	}
	code := state.ExitCode()
	failed := failure(h.log())
	if code == 0 || failed == "" {
		return code, nil
	}
	if name := filepath.Base(string(e)); strings.HasPrefix(name, "runc") || strings.HasPrefix(name, "crun") {
		return codeOf(failed), nil // they have printed it
	}
	return codeOf(failed), fmt.Errorf("start the container: %s", failed)
}

// failure returns the last error in a runtime's log, or "" if there is none: then the exit code is
// that of the container's process.
func failure(log string) (message string) {
	file, err := os.Open(log)
	if err != nil {
		return "" // the runtime has logged nothing
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var line struct{ Level, Msg string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && (line.Level == "error" || line.Level == "fatal") {
			message = line.Msg
		}
	}
	return message
}

// codeOf returns the exit code for a runtime's failure. Runtimes say only in words that a command
// cannot be executed.
func codeOf(failed string) int {
	failed = strings.ToLower(failed)
	switch {
	case !strings.Contains(failed, "exec"):
		return ExitFailed
	case strings.Contains(failed, "not found"), strings.Contains(failed, "no such file or directory"):
		return ExitNotFound
	case strings.Contains(failed, "permission denied"), strings.Contains(failed, "exec format error"),
		strings.Contains(failed, "is a directory"):
		return ExitNotExecutable
	}
	return ExitFailed
}
