// Package history builds lighter binaries of earlier commits, for tests of two versions together.
package history

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/test/testkit/workdir"
)

// Build builds the lighter binary of a commit. It returns "" if the repository does not have the
// commit, for example because it is a shallow clone.
func Build(t *testing.T, commit string) (lighter string) {
	t.Helper()
	if Git(t, "rev-parse", "--verify", commit+"^{commit}").Run() != nil {
		return ""
	}
	source := t.TempDir()
	archive, err := Git(t, "archive", commit).Output()
	if err != nil {
		t.Fatal(err)
	}
	untar := exec.Command("tar", "-x", "-C", source)
	untar.Stdin = bytes.NewReader(archive)
	if out, err := untar.CombinedOutput(); err != nil {
		t.Fatalf("extract commit %s: %v: %s", commit, err, out)
	}
	return Compile(t, source)
}

// Git returns a git command that runs in this repository, even if another user owns the repository.
func Git(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", Module(t)}, args...)...)
}

// Compile builds a lighter binary from a source directory.
func Compile(t *testing.T, source string, flags ...string) (lighter string) {
	t.Helper()
	lighter = filepath.Join(t.TempDir(), "lighter")
	cmd := exec.Command("go", slices.Concat([]string{"build", "-trimpath", "-o", lighter}, flags,
		[]string{"./cmd/lighter"})...)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(cmd.Args, " "), err, out)
	}
	return lighter
}

// Module returns the root of this repository.
func Module(t *testing.T) string {
	t.Helper()
	dir, err := workdir.Module()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
