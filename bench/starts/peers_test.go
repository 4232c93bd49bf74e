package starts

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lighter/bench"
)

func TestMissingPeersAreRemoved(t *testing.T) {
	work := t.TempDir()
	t.Setenv("LIGHTER_WORK", work)
	if err := os.Mkdir(filepath.Join(work, "tools"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "tools", "here"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	r := &run{options: Options{Lighter: "/opt/lighter/bin/lighter"},
		plan: plan{ways: []string{Lighter, "here", "gone", "unable", "built-in"}}}
	r.Peers = []bench.Peer{
		{Name: "here", Command: []string{"{tools}/here", "{root}"}},
		{Name: "gone", Command: []string{"{tools}/gone"}},
		{Name: "unable", Command: []string{"{tools}/here"}, Convert: []string{"no-such-converter", "{trace}"}},
		{Name: "built-in"},
	}
	if !r.needsRecordings() {
		t.Errorf("needsRecordings if %s is measured: got false, want true", Lighter)
	}
	if err := r.removeMissing(); err != nil || !slices.Equal(r.ways, []string{Lighter, "here", "built-in"}) {
		t.Errorf("remaining ways: got %v (%v), want lighter, here and built-in", r.ways, err)
	}
	if r.ways = []string{"here", "unable"}; !r.needsRecordings() {
		t.Error("needsRecordings with a peer converted with recordings: got false, want true")
	}
	if r.ways = []string{"here", LighterFirst}; r.needsRecordings() {
		t.Error("needsRecordings without a way that uses recordings: got true, want false")
	}
	words, err := r.words([]string{"{dir}/x", "{tools}", "{work}/y", "{socket}", "{source}:{source}"},
		map[string]string{"source": "s"})
	want := []string{"/opt/lighter/bin/x", work + "/tools", work + "/y", "{socket}", "s:s"}
	if err != nil || !slices.Equal(words, want) {
		t.Errorf("got words %v, want %v: %v", words, want, err)
	}
}
