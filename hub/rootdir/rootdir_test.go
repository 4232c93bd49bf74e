package rootdir

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// The domains of a directory are the default one, and those with a catalog.
func TestDomains(t *testing.T) {
	root := t.TempDir()
	for _, want := range [][]string{{"default"}, {"default", "team"}} {
		if got, err := Domains(root); err != nil || !slices.Equal(got, want) {
			t.Errorf("domains %q, %v, want %q", got, err, want)
		}
		for _, domain := range []string{"never-opened", "team"} {
			if err := os.MkdirAll(Domain(root, domain), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(Catalog(Domain(root, "team")), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A directory is locked until its lock is closed.
func TestPrepare(t *testing.T) {
	root := t.TempDir()
	for range 2 {
		lock, err := Prepare(root)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Prepare(root); err == nil {
			t.Error("a locked directory was locked a second time")
		}
		if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Only the owner can read the keys, also after the file was replaced.
func TestWriteKey(t *testing.T) {
	path := Key(t.TempDir())
	for _, key := range []string{"first", "second"} {
		if err := WriteKey(path, []byte(key)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Fatalf("%v, %v, want mode 0600", info, err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != key {
			t.Errorf("the file has %q, %v, want %q", text, err, key)
		}
	}
}

// A user who may write to a directory through its group, as a pod to its volume, can write the
// keys there.
func TestWriteKeyInAnothersDirectory(t *testing.T) {
	dir := t.TempDir()
	const user = 65532
	as := func(write func()) { write() }
	if os.Geteuid() == 0 {
		as = func(write func()) {
			runtime.LockOSThread() // for good: the thread ends with its goroutine
			if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, user, user, user); err != 0 {
				t.Error(err)
			}
			write()
		}
		for path, mode := range map[string]os.FileMode{dir: 0o777, filepath.Dir(dir): 0o755} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	written := make(chan error)
	go as(func() { written <- WriteKey(Key(dir), []byte("key")) })
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}
