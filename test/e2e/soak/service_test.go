//go:build e2e

package soak

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/node/health"
	"lighter/node/keeper"
	"lighter/test/testkit/journal"
	"lighter/test/testkit/site"
)

// manager stands in for systemd: it implements sd_notify(3), the file descriptor store, and passing
// stored descriptors to the service.
type manager struct {
	t    *testing.T
	path string

	mu       sync.Mutex // guards the fields below
	names    []string   // of the stored files
	files    []*os.File // the stored files
	received []string   // all lines that the service has sent
}

func startManager(t *testing.T) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "m") // short, for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &manager{t: t, path: filepath.Join(dir, "notify")}
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); m.listen(socket) }()
	t.Cleanup(func() { socket.Close(); <-ended; m.drop(func(string) bool { return true }) })
	return m
}

// listen receives messages until the socket is closed.
func (m *manager) listen(socket *net.UnixConn) {
	b, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(16*4))
	for {
		n, oobn, _, _, err := socket.ReadMsgUnix(b, oob)
		if err != nil {
			return
		}
		var fds []int
		if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(messages) > 0 {
			fds, _ = unix.ParseUnixRights(&messages[0])
		}
		m.receive(strings.Split(string(b[:n]), "\n"), fds)
	}
}

// receive handles a message of the service: its lines, and the descriptors that came with it.
func (m *manager) receive(lines []string, fds []int) {
	var name string
	for _, line := range lines {
		if value, ok := strings.CutPrefix(line, "FDNAME="); ok {
			name = value
		}
	}
	if slices.Contains(lines, "FDSTOREREMOVE=1") {
		m.drop(func(other string) bool { return other == name })
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.received = append(m.received, lines...)
	for _, fd := range fds {
		if !slices.Contains(lines, "FDSTORE=1") || slices.ContainsFunc(m.files,
			func(f *os.File) bool { return same(int(f.Fd()), fd) }) {
			unix.Close(fd)
			continue
		}
		unix.CloseOnExec(fd)
		m.names, m.files = append(m.names, name), append(m.files, os.NewFile(uintptr(fd), name))
	}
}

// same reports whether two descriptors refer to the same open file. It uses kcmp(2), as systemd
// does.
func same(a, b int) bool {
	const kcmpFile = 0
	pid := uintptr(os.Getpid())
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, uintptr(a), uintptr(b), 0)
	return errno == 0 && order == 0
}

// drop removes and closes each stored file for whose name match returns true.
func (m *manager) drop(match func(name string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(m.names) - 1; i >= 0; i-- {
		if match(m.names[i]) {
			m.files[i].Close()
			m.names, m.files = slices.Delete(m.names, i, i+1), slices.Delete(m.files, i, i+1)
		}
	}
}

// stored returns the sorted names of the stored files.
func (m *manager) stored() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(slices.Values(m.names))
}

// lines returns all lines that the service has sent.
func (m *manager) lines() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.received)
}

// awaitLine waits until the service sends another line with a prefix.
func (m *manager) awaitLine(prefix string) {
	m.t.Helper()
	count := func() (n int) {
		for _, line := range m.lines() {
			if strings.HasPrefix(line, prefix) {
				n++
			}
		}
		return n
	}
	for before, end := count(), time.Now().Add(patience); count() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("the node has not sent %s within %v; it has sent %q", prefix, patience, m.lines())
		}
	}
}

// useJournal makes the next node keep a journal, as on a kernel that cannot resend requests. It
// must be called while no node runs and no reads are in flight.
func (m *manager) useJournal() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := m.files[slices.Index(m.names, "lighter-note")]
	page := make([]byte, 4096) // padded with zeros
	_, err := kept.ReadAt(page, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	note, err := journal.Note(bytes.TrimRight(page, "\x00"))
	if err != nil {
		m.t.Fatal(err)
	}
	clear(page)
	copy(page, note)
	if _, err := kept.WriteAt(page, 0); err != nil {
		m.t.Fatal(err)
	}
	empty, err := journal.New()
	if err != nil {
		m.t.Fatal(err)
	}
	m.names, m.files = append(m.names, "lighter-1"), append(m.files, empty)
}

// launch returns the options with which the manager starts the service.
func (m *manager) launch() site.Launch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return site.Launch{
		Wrap: []string{"sh", "-c", `export LISTEN_PID=$$ WATCHDOG_PID=$$; exec "$0" "$@"`},
		Env: []string{"NOTIFY_SOCKET=" + m.path, "FDSTORE=16", "WATCHDOG_USEC=200000",
			"LISTEN_FDS=" + strconv.Itoa(len(m.files)), "LISTEN_FDNAMES=" + strings.Join(m.names, ":")},
		Files: slices.Clone(m.files),
	}
}

// Under a service manager with a descriptor store, a node starts no keeper. When the node is
// killed, reads wait for the next node. The node reports its state to the manager.
func TestServiceManager(t *testing.T) {
	s, c := contained(t)
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(s.Machine.NodeLog()) // for information only
			t.Logf("the log of all nodes:\n%s", log)
		}
	})
	for _, journalled := range []bool{false, true} {
		m := startManager(t)
		if err := s.Machine.StopNode(); err != nil {
			t.Fatal(err)
		}
		if err := s.Machine.LaunchNode(t.Context(), m.launch()); err != nil {
			t.Fatal(err)
		}
		want := []string{"lighter-0", "lighter-note"}
		if journalled {
			want = []string{"lighter-0", "lighter-1", "lighter-note"}
			s.Machine.KillNode()
			m.useJournal()
			if err := s.Machine.LaunchNode(t.Context(), m.launch()); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Machine.Reconnect(t.Context()); err != nil {
			t.Fatal(err)
		}
		c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("data"), "sleep", "infinity")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got := m.stored(); !slices.Equal(got, want) {
				t.Errorf("the manager stores %v, want %v", got, want)
			}
			m.awaitLine("WATCHDOG=1")
			s.Machine.KillNode()
			read := readAll(filepath.Join(c.Root, "data"))
			select {
			case err := <-read:
				t.Fatalf("a read ended while no node ran (%v), want it to wait", err)
			case <-time.After(200 * time.Millisecond):
			}
			if err := s.Machine.LaunchNode(t.Context(), m.launch()); err != nil {
				t.Fatal(err)
			}
			if err := <-read; err != nil {
				t.Errorf("a read that waited for the next node (with a journal: %t): %v", journalled, err)
			}
		}
		if _, _, err := (keeper.Process{Root: s.Machine.NodeRoot()}).Take(t.Context()); !errors.Is(err,
			fs.ErrNotExist) {
			t.Errorf("ask for a keeper while the manager stores descriptors: %v, want %v", err, fs.ErrNotExist)
		}
		if err := c.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		if err := s.Machine.StopNode(); err != nil {
			t.Error(err)
		}
		for _, line := range []string{"READY=1", "STOPPING=1"} {
			if got := m.lines(); !slices.Contains(got, line) {
				t.Errorf("the manager has received %q, want the line %s among them", got, line)
			}
		}
		if got := m.stored(); len(got) > 0 {
			t.Errorf("after the node has unmounted everything, the manager stores %v, want nothing", got)
		}
	}
	if err := s.Machine.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A node stops while another process queries the file system of the node's devices, as the watchdog
// and df do. The query must not hang: a waiting process would keep the file system mounted.
func TestStopWhileQueried(t *testing.T) {
	s := startSite(t)
	m := startManager(t)
	for range 5 {
		if err := s.Machine.StopNode(); err != nil {
			t.Fatal(err)
		}
		if err := s.Machine.LaunchNode(t.Context(), m.launch()); err != nil {
			t.Fatal(err)
		}
		var stopped atomic.Bool
		queries := make(chan int, 1)
		go func() {
			var n int
			for ; !stopped.Load() && health.Probe(s.Machine.NodeRoot()) == nil; n++ {
				time.Sleep(200 * time.Microsecond)
			}
			queries <- n
		}()
		time.Sleep(10 * time.Millisecond)
		err := s.Machine.StopNode()
		stopped.Store(true)
		if got := m.stored(); err != nil || len(got) > 0 {
			t.Fatalf("stop of a node without containers: error %v, and the manager stores %v; want neither", err, got)
		}
		if n := <-queries; n == 0 {
			t.Error("the file system was not queried before the node stopped, want at least one query")
		}
	}
	if err := s.Machine.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
}
