// Package socketdir makes temporary directories for Unix sockets. The path of a Unix socket has at
// most 107 bytes.
package socketdir

import (
	"os"
	"testing"
)

// New makes a directory as t.TempDir does, but its path is short: it does not contain the test's
// name.
func New(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
