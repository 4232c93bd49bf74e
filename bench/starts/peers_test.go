package starts

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lighter/bench"
)

func TestPeersThatAreNotThereAreLeftOut(t *testing.T) {
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
	if !r.needsTraces() {
		t.Error("nobody needs traces")
	}
	if err := r.present(); err != nil || !slices.Equal(r.ways, []string{Lighter, "here", "built-in"}) {
		t.Errorf("left are %v: %v", r.ways, err)
	}
	if r.ways = []string{"here", "unable"}; !r.needsTraces() {
		t.Error("a peer that is converted with traces needs none")
	}
	if r.ways = []string{"here", LighterFirst}; r.needsTraces() {
		t.Error("somebody needs traces")
	}
	words, err := r.words([]string{"{dir}/x", "{tools}", "{work}/y", "{socket}", "{source}:{source}"},
		map[string]string{"source": "s"})
	want := []string{"/opt/lighter/bin/x", work + "/tools", work + "/y", "{socket}", "s:s"}
	if err != nil || !slices.Equal(words, want) {
		t.Errorf("words %v, not %v: %v", words, want, err)
	}
}
