//go:build e2e

package containers

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudoterminal and what was printed on it.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File

	mu   sync.Mutex
	text bytes.Buffer
}

// newTerminal returns a terminal of 33 rows and 77 columns.
func newTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &terminal{t: t, master: master, slave: slave}
	p.resize(33, 77)
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			p.mu.Lock()
			p.text.Write(b[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { slave.Close(); master.Close() })
	return p
}

func (p *terminal) resize(rows, columns uint16) {
	p.t.Helper()
	if err := unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: rows, Col: columns}); err != nil {
		p.t.Fatal(err)
	}
}

// shows waits until the terminal shows a text.
func (p *terminal) shows(text string) {
	p.t.Helper()
	for range 3000 {
		p.mu.Lock()
		found := strings.Contains(p.text.String(), text)
		p.mu.Unlock()
		if found {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.t.Fatalf("the terminal shows %q, and not %q", p.text.String(), text)
}

func (p *terminal) types(text string) {
	p.t.Helper()
	if _, err := p.master.WriteString(text); err != nil {
		p.t.Fatal(err)
	}
}

// run starts a command on the terminal.
func (p *terminal) run(argv ...string) *exec.Cmd {
	p.t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.slave, p.slave, p.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	return cmd
}

// On a terminal, a container has a terminal of its own, with the same size. Keys reach it, and the
// terminal is as before at its end.
func TestTerminal(t *testing.T) { withEachRuntime(t, testTerminal) }

func testTerminal(t *testing.T) {
	p := newTerminal(t)
	before, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := p.run(command(nodeRoot, "run", "base:1", "sh", "-c",
		`tty; echo $TERM; stty size; read line; echo "<$line>"
		trap 'echo interrupted; exit 6' INT; trap 'stty size' WINCH; echo waiting; while :; do sleep 0.05; done`)...)
	p.shows("/dev/pts/0")
	p.shows("xterm")
	p.shows("33 77")
	p.types("typed\r")
	p.shows("<typed>")
	p.shows("waiting")
	if oci != "crun" { // Debian 12's crun passes the signal on, and not the size
		p.resize(44, 99)
		p.shows("44 99")
	}
	p.types("\x03") // the interrupt key
	p.shows("interrupted")
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 6 {
		t.Errorf("the end: %v, want exit code 6", err)
	}
	after, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal's settings are %+v, %v; want %+v as before", after, err, before)
	}
}
