package main

import (
	"testing"

	"lighter/wire"
)

// Scripts see by the exit code whether fsck has left a problem.
func TestExitCodeOfFsck(t *testing.T) {
	found := wire.Check{Findings: []wire.Finding{{Problem: "lost objects", Count: 2, Repaired: 1}}}
	if code := exitCode(fsckResult{found}.Err()); code != exitProblems {
		t.Errorf("one of two problems is left: exit code %d, want %d", code, exitProblems)
	}
	found.Findings[0].Repaired = 2
	if err := (fsckResult{found}).Err(); err != nil {
		t.Errorf("all problems are repaired: got %v, want no error", err)
	}
}
