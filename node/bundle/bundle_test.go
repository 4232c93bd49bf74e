package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/node/standalone"
)

// A bundle is prepared in an empty directory only. clear removes what prepare has made, and no file
// of somebody else.
func TestPrepareAndClear(t *testing.T) {
	p := places{t.TempDir()}
	o := Options{Image: "a:1", Mounts: standalone.Mounts{Root: "/node", Own: "/own"}}
	if err := p.prepare(o); err != nil {
		t.Fatal(err)
	}
	if s, err := p.read(); err != nil || s != (state{Image: "a:1", Node: "/node", Own: "/own"}) {
		t.Errorf("the state is %+v, %v", s, err)
	}
	mine := filepath.Join(p.dir, "mine")
	if err := os.WriteFile(mine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.clear(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(p.dir); err != nil || len(left) != 1 || left[0].Name() != "mine" {
		t.Errorf("left %v, %v; want only the file of somebody else", left, err)
	}
	if err := p.prepare(o); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a directory with a file: got %v, want an error", err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("the file of somebody else: %v", err)
	}
}

func TestPulls(t *testing.T) {
	for _, p := range []Pull{PullMissing, PullAlways, PullNever} {
		if err := CheckPull(p); err != nil {
			t.Errorf("%s: got %v", p, err)
		}
	}
	if err := CheckPull("sometimes"); err == nil {
		t.Error("an unknown value: got no error")
	}
}
