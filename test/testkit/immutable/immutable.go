// Package immutable makes directories that cannot be deleted, as with `chattr +i` or on a damaged
// file system.
package immutable

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// immutableFlag is FS_IMMUTABLE_FL.
const immutableFlag = 0x10

// Dir makes a directory that contains a file. Until the test ends, neither the directory nor the
// file can be deleted, not even by root.
func Dir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "immutable"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	Set(t, path, true)
	t.Cleanup(func() {
		if _, err := os.Lstat(path); err == nil { // otherwise the test has removed the directory
			Set(t, path, false)
		}
	})
}

// Set sets or clears the immutable flag of a directory. Without root, it removes or restores write
// permission instead, so that entries of the directory cannot be deleted either.
func Set(t *testing.T, path string, immutable bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		mode := os.FileMode(0o755)
		if immutable {
			mode = 0o555
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return
	}
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	flags, err := unix.IoctlGetUint32(int(dir.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		t.Fatalf("read the flags of %s: %v", path, err)
	}
	flags &^= immutableFlag
	if immutable {
		flags |= immutableFlag
	}
	if err := unix.IoctlSetPointerInt(int(dir.Fd()), unix.FS_IOC_SETFLAGS, int(flags)); err != nil {
		t.Fatalf("set the flags of %s: %v", path, err)
	}
}
