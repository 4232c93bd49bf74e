package keeper

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/socketdir"
)

// messages are the messages of the first version. They never change, because a keeper runs as long
// as containers run, and daemons of many versions use it.
var messages = []struct {
	ask, answer           string
	askFiles, answerFiles int // numbers of descriptors
}{
	{"Kthe note", "K", 2, 0},
	{"T", "Tthe note", 0, 2},
	{"D", "", 0, 0},
}

// The current keeper answers the messages of a daemon of the first version.
func TestKeeperUnderstandsTheFirstVersion(t *testing.T) {
	root := socketdir.New(t)
	listener := listen(t, root)
	ended := make(chan error, 1)
	go func() { ended <- serve(listener, false) }()
	_, w := pipe(t)
	for _, m := range messages {
		conn, err := dial(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		if err := sendRaw(conn, m.ask, m.askFiles, w); err != nil {
			t.Fatal(err)
		}
		if m.answer == "" { // the keeper does not answer, but ends
			if err := <-ended; err != nil {
				t.Error(err)
			}
		} else if got, files := receiveRaw(t, conn); got != m.answer || files != m.answerFiles {
			t.Errorf("answer to %q: got %q and %d descriptors, want %q and %d", m.ask, got, files, m.answer,
				m.answerFiles)
		}
		conn.Close()
	}
}

// The current daemon sends the messages that a keeper of the first version knows.
func TestDaemonSpeaksTheFirstVersion(t *testing.T) {
	root := socketdir.New(t)
	listener := listen(t, root)
	_, w := pipe(t)
	answered := make(chan bool)
	go func() {
		defer close(answered)
		for _, m := range messages {
			conn, err := listener.AcceptUnix()
			if err != nil {
				t.Errorf("accept: %v; want a connection for each message", err)
				return
			}
			if got, files := receiveRaw(t, conn); got != m.ask || files != m.askFiles {
				t.Errorf("the daemon sent %q and %d descriptors, want %q and %d", got, files, m.ask, m.askFiles)
			}
			if m.answer != "" {
				if err := sendRaw(conn, m.answer, m.answerFiles, w); err != nil {
					t.Error(err)
				}
			}
			conn.Close()
		}
	}()
	p := Process{Root: root}
	if err := p.Keep(t.Context(), []*os.File{w, w}, []byte("the note")); err != nil {
		t.Error(err)
	}
	files, note, err := p.Take(t.Context())
	if err != nil || len(files) != 2 || string(note) != "the note" {
		t.Errorf("Take: got %d descriptors and note %q, error %v; want 2 and %q", len(files), note, err, "the note")
	}
	for _, file := range files {
		file.Close()
	}
	if err := p.Drop(t.Context()); err != nil {
		t.Error(err)
	}
	listener.Close()
	<-answered
}

func listen(t *testing.T, root string) *net.UnixListener {
	t.Helper()
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: Socket(root), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

func sendRaw(conn *net.UnixConn, text string, files int, file *os.File) error {
	var rights []byte
	if files > 0 {
		fds := make([]int, files)
		for i := range fds {
			fds[i] = int(file.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err := conn.WriteMsgUnix([]byte(text), rights, nil)
	return err
}

// receiveRaw returns one message, and the number of its descriptors.
func receiveRaw(t *testing.T, conn *net.UnixConn) (text string, files int) {
	t.Helper()
	b, oob := make([]byte, 4096), make([]byte, 4096)
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Error(err)
	}
	n, oobn, _, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		t.Error(err)
	}
	controls, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		t.Error(err)
	}
	for _, m := range controls {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			t.Error(err)
		}
		files += len(fds)
		closeAll(fds)
	}
	return string(b[:n]), files
}
