//go:build e2e

package soak

import (
	"bytes"
	"testing"

	"lighter/test/testkit/history"
)

// buildOlder builds the lighter binary of the previous commit: HEAD~1, or HEAD if the working tree
// differs from HEAD. Without history, for example in a shallow clone, it returns "". In `make soak`
// that is an error.
func buildOlder(t *testing.T) (lighter string) {
	t.Helper()
	commit := "HEAD~1"
	changed, err := history.Git(t, "status", "--porcelain").Output()
	if err == nil && len(bytes.TrimSpace(changed)) > 0 {
		commit = "HEAD"
	}
	if err == nil {
		lighter = history.Build(t, commit)
	}
	if lighter == "" {
		if long {
			t.Fatalf("there is no %s to build the older lighter of (a clone without history?): %v", commit, err)
		}
		t.Logf("NOT TESTED: replacement by an older lighter: commit %s is missing (a clone without history?): %v",
			commit, err)
	}
	return lighter
}

// buildNewer builds a lighter binary that keeps state of a given version. oldest is the oldest
// version of daemons that can read this state.
func buildNewer(t *testing.T, version, oldest string) (lighter string) {
	t.Helper()
	return history.Compile(t, history.Module(t), "-ldflags",
		"-X lighter/node/takeover.keptVersion="+version+" -X lighter/node/takeover.keptOldest="+oldest)
}
