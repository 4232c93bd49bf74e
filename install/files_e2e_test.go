//go:build e2e

package install

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A file on a read-only file system, a new directory there, and a file that is mounted by itself
// are refused, and nothing is left behind.
func TestMountedFiles(t *testing.T) {
	dir := t.TempDir()
	fixed, mounted := filepath.Join(dir, "fixed"), file(t, "mounted", "old\n")
	if err := errors.Join(os.Mkdir(fixed, 0o755), unix.Mount("tmpfs", fixed, "tmpfs", 0, "mode=755"),
		os.WriteFile(filepath.Join(fixed, "file"), []byte("old\n"), 0o644),
		unix.Mount("", fixed, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		unix.Mount(mounted.Path, mounted.Path, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(fixed, 0), unix.Unmount(mounted.Path, 0)); err != nil {
			t.Error(err)
		}
	})
	for path, want := range map[string]string{filepath.Join(fixed, "file"): "read-only",
		filepath.Join(fixed, "new"): "read-only", filepath.Join(fixed, "new/file"): "read-only",
		mounted.Path: "mount point"} {
		text, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		changes := text.To([]byte("new\n"))
		changes[0].Directory = Missing(filepath.Dir(path))
		_, err = Machine{}.Apply(t.Context(), &Plan{Changes: changes}, Options{})
		if refused := (*Refused)(nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a refusal with %q", path, err, want)
		}
		if again, err := Read(path); err != nil || string(again.Bytes) != string(text.Bytes) ||
			!Missing(path+stagedSuffix) {
			t.Errorf("%s: got %q (%v), and a staged file: %t; want what was there", path, again.Bytes, err,
				!Missing(path+stagedSuffix))
		}
	}
}
