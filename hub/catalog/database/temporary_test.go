package database

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// SQLite finds a directory for temporary files on this machine. It finds none if all are missing or
// no directories, as in a container whose root file system is read-only.
func TestTemporaryDirs(t *testing.T) {
	if err := checkTemporary(temporaryDirs()); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	none := []string{"", file, filepath.Join(t.TempDir(), "missing")}
	if err := checkTemporary(none); !errors.Is(err, errNoTemporaryDir) {
		t.Errorf("without a directory: got %v, want %v", err, errNoTemporaryDir)
	}
	if err := checkTemporary(append(none, t.TempDir())); err != nil {
		t.Errorf("with a directory: %v", err)
	}
}
