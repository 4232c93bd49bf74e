//go:build e2e

package soak

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lighter/test/testkit/site"
)

// buildOlder builds the lighter of the commit before what is checked out: HEAD~1,
// or HEAD if the working tree differs from it. Without history, as in a shallow
// clone, it returns "": that is an error only in `make soak`.
func buildOlder(t *testing.T) (lighter string) {
	t.Helper()
	module := module(t)
	commit := "HEAD~1"
	changed, err := git(module, "status", "--porcelain").Output()
	if err == nil && len(bytes.TrimSpace(changed)) > 0 {
		commit = "HEAD"
	}
	if err == nil {
		_, err = git(module, "rev-parse", "--verify", commit+"^{commit}").Output()
	}
	if err != nil {
		if long {
			t.Fatalf("there is no %s to build the older lighter of (a clone without history?): %v", commit, err)
		}
		t.Logf("NOT TESTED: replacement by an older lighter: there is no %s to build it of (a clone without history?): %v", commit, err)
		return ""
	}
	source := t.TempDir()
	archive, err := git(module, "archive", commit).Output()
	if err != nil {
		t.Fatal(err)
	}
	untar := exec.Command("tar", "-x", "-C", source)
	untar.Stdin = bytes.NewReader(archive)
	if out, err := untar.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return build(t, source)
}

// git runs whoever the repository belongs to.
func git(dir string, args ...string) *exec.Cmd {
	return exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", dir}, args...)...)
}

// buildNewer builds a lighter whose note for its successor has that version, and
// can be read by daemons from oldest on.
func buildNewer(t *testing.T, version, oldest string) (lighter string) {
	t.Helper()
	return build(t, module(t), "-ldflags", "-X lighter/node/takeover.keptVersion="+version+" -X lighter/node/takeover.keptOldest="+oldest)
}

func build(t *testing.T, source string, flags ...string) (lighter string) {
	t.Helper()
	lighter = filepath.Join(t.TempDir(), "lighter")
	cmd := exec.Command("go", append(append([]string{"build", "-trimpath", "-o", lighter}, flags...), "./cmd/lighter")...)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(cmd.Args, " "), err, out)
	}
	return lighter
}

func module(t *testing.T) string {
	t.Helper()
	dir, err := site.Module()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
