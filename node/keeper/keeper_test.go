package keeper

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/socketdir"
)

// Holds succeeds only for the note of the last Keep, and fails after Drop.
func TestHolds(t *testing.T) {
	root := socketdir.New(t)
	_, w := pipe(t)
	p := Process{Root: root}
	holds := func(note string, want bool) {
		t.Helper()
		if err := p.Holds(t.Context(), []byte(note)); want != (err == nil) || !want && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Holds of note %q: got %v; want success %t, or else %v", note, err, want, fs.ErrNotExist)
		}
	}
	holds("", false)
	for _, note := range []string{"first", "second"} {
		if err := keep(t, root, w, note); err != nil {
			t.Fatal(err)
		}
		holds(note, true)
		holds("other", false)
	}
	holds("first", false)
	if err := p.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	holds("second", false)
}

// TestMain runs the test binary as a keeper process if its argument is keep.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keep" {
		if err := Run(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == "stay" {
		_ = Stay(os.Args[2])
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// keep makes root's keeper hold a file, and starts a keeper if none runs.
func keep(t *testing.T, root string, file *os.File, note string) error {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Process{root, []string{self, "keep"}}.Keep(t.Context(), []*os.File{file}, []byte(note))
}

// pipe returns the ends of a pipe. A keeper of the writing end ends when the reading end is closed
// in all processes, because poll(2) then returns POLLERR for the writing end.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// awaitEnd waits until root's keeper has ended.
func awaitEnd(t *testing.T, root string) {
	t.Helper()
	for {
		if _, _, err := (Process{Root: root}).Take(t.Context()); errors.Is(err, unix.ECONNREFUSED) || errors.Is(err,
			fs.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Take returns the file and note of the last Keep. A keeper closes its file at the next Keep and at
// Drop, and ends at Drop and when its connection ends.
func TestKeepTakeDrop(t *testing.T) {
	root := socketdir.New(t)
	if _, _, err := (Process{Root: root}).Take(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("take without a keeper: got %v, want %v", err, fs.ErrNotExist)
	}
	r, w := pipe(t)
	if err := keep(t, root, w, "first"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	for range 3 { // Take works any number of times
		files, note, err := Process{Root: root}.Take(t.Context())
		if err != nil || string(note) != "first" || len(files) != 1 {
			t.Fatalf("take: got %d files, note %q, %v; want 1 and %q", len(files), note, err, "first")
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
		t.Errorf("the socket: got %v, %v; want mode 0600", info, err)
	}

	// In the same keeper, another file replaces the first file.
	r2, w2 := pipe(t)
	if err := keep(t, root, w2, "second"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the first file: got %v, want EOF, because the keeper has closed it", err)
	}
	files, note, err := Process{Root: root}.Take(t.Context())
	if err != nil || string(note) != "second" {
		t.Fatalf("take: got note %q, %v; want %q", note, err, "second")
	}
	files[0].Close()

	// The keeper ends with its connection. A new keeper can use the socket's path.
	r2.Close()
	awaitEnd(t, root)
	r3, w3 := pipe(t)
	if err := keep(t, root, w3, "third"); err != nil {
		t.Fatal(err)
	}
	if err := (Process{Root: root}).Drop(t.Context()); err != nil {
		t.Error(err)
	}
	w3.Close()
	if _, err := r3.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a dropped file: got %v, want EOF, because the keeper has closed it", err)
	}
	awaitEnd(t, root)
	if err := (Process{Root: root}).Drop(t.Context()); err != nil {
		t.Errorf("drop without a keeper: got %v, want no error", err)
	}
}

func TestNoteTooLong(t *testing.T) {
	_, w := pipe(t)
	if err := keep(t, socketdir.New(t), w, string(make([]byte, maxNote+1))); err == nil {
		t.Errorf("a note of %d bytes: got no error", maxNote+1)
	}
}

// Keep fails if the keeper's program is missing, or ends without an answer.
func TestProgramThatIsNoKeeper(t *testing.T) {
	_, w := pipe(t)
	for _, program := range []string{"/no/such/program", "/bin/true"} {
		p := Process{socketdir.New(t), []string{program}}
		if err := p.Keep(t.Context(), []*os.File{w}, nil); err == nil {
			t.Errorf("%s: got no error", program)
		}
	}
}

// A keeper holds several descriptors and returns them in the same order. Keep fails without
// descriptors, and with more than maxFiles.
func TestKeepSeveral(t *testing.T) {
	root := socketdir.New(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := Process{root, []string{self, "keep"}}
	r1, w1 := pipe(t)
	r2, w2 := pipe(t)
	if err := p.Keep(t.Context(), []*os.File{w1, w2}, []byte("two")); err != nil {
		t.Fatal(err)
	}
	files, note, err := p.Take(t.Context())
	if err != nil || len(files) != 2 || string(note) != "two" {
		t.Fatalf("take: got %d files, note %q, %v; want 2 and %q", len(files), note, err, "two")
	}
	for i, r := range []*os.File{r1, r2} {
		b := make([]byte, 1)
		if _, err := files[i].Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, b); err != nil || b[0] != byte(i) {
			t.Errorf("file %d: got byte %d, %v; want %d", i, b[0], err, i)
		}
		files[i].Close()
	}
	for _, files := range [][]*os.File{nil, {w1, w1, w1, w1, w1}} {
		if err := p.Keep(t.Context(), files, nil); err == nil {
			t.Errorf("%d descriptors: got no error", len(files))
		}
	}
	if err := p.Drop(t.Context()); err != nil {
		t.Error(err)
	}
}

// If a process has no free descriptors, Take fails, but not with the error that nothing is held.
func TestTakeWithoutFreeDescriptors(t *testing.T) {
	root := socketdir.New(t)
	_, w := pipe(t)
	if err := keep(t, root, w, "kept"); err != nil {
		t.Fatal(err)
	}
	take := func() error {
		files, _, err := (Process{Root: root}).Take(t.Context())
		for _, file := range files {
			file.Close()
		}
		return err
	}
	if err := take(); err != nil { // so that the Go runtime opens its own descriptors before the limit
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	var all []int
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		all = append(all, fd)
	}
	for free := range 2 { // 0: none for the socket; 1: one for the socket, none for the files
		if err := take(); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("with %d free descriptors: got %v, want another error than %v", free, err, fs.ErrNotExist)
		}
		closeAll(all[free : free+1])
	}
	closeAll(all[2:])
	if err := take(); err != nil {
		t.Error(err)
	}
}
