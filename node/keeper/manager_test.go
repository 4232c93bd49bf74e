package keeper

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/socketdir"
)

// startManager starts a service manager that closes all descriptors that it receives, which also
// confirms all messages. end ends the manager, and returns the messages that it has received.
func startManager(t *testing.T) (path string, end func() string) {
	t.Helper()
	path = filepath.Join(socketdir.New(t), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	received := make(chan string, 16)
	go func() {
		defer close(received)
		b, oob := make([]byte, 4096), make([]byte, 64)
		for {
			n, oobn, _, _, err := socket.ReadMsgUnix(b, oob)
			if err != nil {
				return
			}
			fds, _ := descriptors(oob[:oobn])
			closeAll(fds) // as an answer to BARRIER=1
			received <- string(b[:n])
		}
	}()
	return path, func() string {
		socket.Close()
		var all strings.Builder
		for message := range received {
			all.WriteString(message + "\n")
		}
		return all.String()
	}
}

// Keep tells systemd not to poll the descriptors. By default systemd polls stored descriptors, and
// would be woken for each request on the connection.
func TestManagerDoesNotPoll(t *testing.T) {
	path, end := startManager(t)
	r, _ := pipe(t)
	m := &Manager{socket: path}
	if err := m.Keep(t.Context(), []*os.File{r}, []byte("note")); err != nil {
		t.Fatal(err)
	}
	sent := end()
	if stored, unpolled := strings.Count(sent, "FDSTORE=1\n"), strings.Count(sent,
		"FDSTORE=1\nFDPOLL=0\n"); stored != 2 || unpolled != stored {
		t.Errorf("got %d descriptors, %d with FDPOLL=0; want 2 and 2:\n%s", stored, unpolled, sent)
	}
}

// A daemon that was killed before it had sent everything leaves files without a note. Take closes
// these files in this process and in the service manager. Otherwise readers would wait for ever.
func TestFilesWithoutANote(t *testing.T) {
	path, end := startManager(t)
	r, w := pipe(t)
	fds, err := numbers([]*os.File{w})
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	m := &Manager{socket: path, kept: map[string]int{managedFile + "0": fd}}
	if _, _, err := m.Take(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a note: got %v, want %v", err, fs.ErrNotExist)
	}
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a file without a note: got %v, want EOF, because all processes have closed it", err)
	}
	if sent := end(); !strings.Contains(sent, "FDSTOREREMOVE=1\nFDNAME=lighter-0\n") {
		t.Errorf("want FDSTOREREMOVE for the file, got:\n%s", sent)
	}
}
