// Package socketdir makes temporary directories for Unix sockets, whose paths may have 107 bytes.
package socketdir

import (
	"os"
	"testing"
)

// New is t.TempDir with a short path, which does not contain the test's name.
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
