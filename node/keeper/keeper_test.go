package keeper

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is the keeper too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keep" {
		if err := Run(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func keep(t *testing.T, root string, file *os.File, note string) error {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Process{root, []string{self, "keep"}}.Keep(t.Context(), []*os.File{file}, []byte(note))
}

// pipe returns the ends of a pipe. The keeper ends when the reading end is closed
// everywhere: to poll the writing end is an error then.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// gone waits until the keeper has ended.
func gone(t *testing.T, root string) {
	t.Helper()
	for {
		if _, _, err := (Process{Root: root}).Take(t.Context()); errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestKept(t *testing.T) {
	root := t.TempDir()
	if _, _, err := (Process{Root: root}).Take(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a keeper: %v", err)
	}
	r, w := pipe(t)
	if err := keep(t, root, w, "first"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	for range 3 { // as often as one likes
		files, note, err := Process{Root: root}.Take(t.Context())
		if err != nil || string(note) != "first" || len(files) != 1 {
			t.Fatalf("%q, %v", note, err)
		}
		file := files[0]
		if _, err := file.WriteString("x"); err != nil {
			t.Error(err)
		}
		file.Close()
	}
	if _, err := io.ReadFull(r, make([]byte, 3)); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(Socket(root))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}

	// Another takes the first one's place, in the same keeper.
	r2, w2 := pipe(t)
	if err := keep(t, root, w2, "second"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the first one is still held: %v", err)
	}
	files, note, err := Process{Root: root}.Take(t.Context())
	if err != nil || string(note) != "second" {
		t.Fatalf("%q, %v", note, err)
	}
	files[0].Close()

	// What is of no use ends it, and leaves its socket to the next one.
	r2.Close()
	gone(t, root)
	r3, w3 := pipe(t)
	if err := keep(t, root, w3, "third"); err != nil {
		t.Fatal(err)
	}
	if err := (Process{Root: root}).Drop(t.Context()); err != nil {
		t.Error(err)
	}
	w3.Close()
	if _, err := r3.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("what was dropped is still held: %v", err)
	}
	gone(t, root)
	if err := (Process{Root: root}).Drop(t.Context()); err != nil {
		t.Errorf("without a keeper: %v", err)
	}
}

func TestNoteTooLong(t *testing.T) {
	_, w := pipe(t)
	if err := keep(t, t.TempDir(), w, string(make([]byte, maxNote+1))); err == nil {
		t.Error("accepted")
	}
}

func TestProgramThatIsNone(t *testing.T) {
	_, w := pipe(t)
	if err := (Process{t.TempDir(), []string{"/no/such/program"}}).Keep(t.Context(), []*os.File{w}, nil); err == nil {
		t.Error("kept by nobody")
	}
	if err := (Process{t.TempDir(), []string{"/bin/true"}}).Keep(t.Context(), []*os.File{w}, nil); err == nil {
		t.Error("kept by nobody")
	}
}
