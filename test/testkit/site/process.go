package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Time limits for the start and the end of a process.
const (
	readyTimeout = 30 * time.Second
	stopTimeout  = 30 * time.Second
)

// process is a child that runs until it is stopped.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when the process has ended
	err   error         // from Wait; set before ended is closed
}

// startProcess starts argv[0]. Its output goes to logs/NAME.log in the site's directory.
func (s *Site) startProcess(name string, argv []string, env ...string) (*process, error) {
	return s.startProcessWith(name, argv, env, nil)
}

// startProcessWith does what startProcess does, with inherited files, from descriptor 3 on.
func (s *Site) startProcessWith(name string, argv, env []string, files []*os.File) (*process, error) {
	p := &process{name: name, cmd: exec.Command(argv[0], argv[1:]...), log: filepath.Join(s.Dir, "logs", name+".log"),
		ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = log, log, files
	p.cmd.Env = append(os.Environ(), "PATH="+strings.Join(s.path, ":")+":"+os.Getenv("PATH"))
	p.cmd.Env = append(p.cmd.Env, env...)
	// In a process group of its own, the process gets no signal on Ctrl-C in the terminal.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// await calls ready until it succeeds, the process ends, or readyTimeout is over.
func (p *process) await(ctx context.Context, ready func() error) error {
	return p.awaitFor(ctx, readyTimeout, ready)
}

// awaitFor does what await does, with another time limit.
func (p *process) awaitFor(ctx context.Context, limit time.Duration, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended (%v): %s", p.name, p.err, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %s\n%s", p.name, err, p.tail(), p.threads())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stop ends the process with SIGTERM, or with SIGKILL after stopTimeout. A nil process counts as
// stopped.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // the process may have ended by itself
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("%s did not end on SIGTERM and was killed: %s", p.name, p.tail())
	}
	return nil
}

// kill ends the process as a crash would.
func (p *process) kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill() // the process may have ended by itself
	<-p.ended
}

// tail returns the end of the process's log, for error messages.
func (p *process) tail() string {
	const maxTail = 2000 // bytes
	file, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > maxTail {
		_, _ = file.Seek(-maxTail, io.SeekEnd) // if it fails, the whole log is returned
	}
	b, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	return "its log ends with:\n" + strings.TrimSpace(string(b))
}

// threads returns what each thread of the process does in the kernel: its state, and the functions
// that it is in.
func (p *process) threads() string {
	dirs, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.pid()))
	if err != nil {
		return err.Error()
	}
	var said strings.Builder
	said.WriteString("its threads:")
	for _, dir := range dirs {
		for _, name := range []string{"stat", "stack"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				text = []byte(err.Error()) // the thread has ended
			}
			said.WriteString("\n" + strings.TrimSpace(string(text)))
		}
	}
	return said.String()
}

// dial returns a function that succeeds once a server listens on the address.
func dial(network, address string) func() error {
	return func() error {
		conn, err := net.DialTimeout(network, address, time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// command runs a program to its end and returns what it wrote to its standard output.
func (s *Site) command(ctx context.Context, argv ...string) (string, error) {
	cmd := s.program(ctx, argv)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err,
			strings.TrimSpace(stderr.String()+string(out)))
	}
	return string(out), nil
}

// program returns a command that is killed, with its children, when ctx ends.
func (s *Site) program(ctx context.Context, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+strings.Join(s.path, ":")+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// commands runs command lines one after the other. It splits them at spaces.
func (s *Site) commands(ctx context.Context, lines ...string) error {
	var errs []error
	for _, line := range lines {
		if _, err := s.command(ctx, strings.Fields(line)...); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Service is one more program of a site, for example the kubelet.
type Service struct{ process *process }

// StartService starts a program, and waits for a limited time until ready returns no error. The
// caller stops it before the site is closed.
func (s *Site) StartService(
	ctx context.Context, name string, argv []string, limit time.Duration, ready func() error,
) (*Service, error) {
	p, err := s.startProcess(name, argv)
	if err != nil {
		return nil, err
	}
	if err := p.awaitFor(ctx, limit, ready); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return &Service{p}, nil
}

// Stop ends the program with SIGTERM. A nil service counts as stopped.
func (s *Service) Stop() error {
	if s == nil {
		return nil
	}
	return s.process.stop()
}

// Log returns the path of the program's log.
func (s *Service) Log() string { return s.process.log }
