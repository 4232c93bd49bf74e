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
)

// A daemon that was killed before it had handed over everything leaves files without
// a note: nobody may hold them, or who waits for an answer waits for ever.
func TestFilesWithoutANote(t *testing.T) {
	path := filepath.Join(shortDir(t), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 16)
	go func() {
		defer close(said)
		b, oob := make([]byte, 4096), make([]byte, 64)
		for {
			n, oobn, _, _, err := socket.ReadMsgUnix(b, oob)
			if err != nil {
				return
			}
			fds, _ := descriptors(oob[:oobn])
			closeAll(fds) // as an answer to BARRIER=1
			said <- string(b[:n])
		}
	}()
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
		t.Errorf("without a note: %v", err)
	}
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a file without a note is still open: %v", err)
	}
	socket.Close()
	var all strings.Builder
	for line := range said {
		all.WriteString(line + "\n")
	}
	if !strings.Contains(all.String(), "FDSTOREREMOVE=1\nFDNAME=lighter-0\n") {
		t.Errorf("the manager was told:\n%s", all.String())
	}
}
