package keeper

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"testing"
	"time"

	"lighter/test/testkit/socketdir"
)

// A keeper that is a service of its own holds what a daemon gives it, and stays when that was
// dropped or has ended. Neither a daemon nor the service's manager starts a second keeper.
func TestStay(t *testing.T) {
	root := socketdir.New(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	service := exec.Command(self, "stay", root)
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = service.Process.Kill(), service.Wait() })
	p := Process{Root: root} // it cannot start a keeper
	for {
		if conn, err := dial(t.Context(), root); err == nil {
			conn.Close()
			break
		}
		time.Sleep(time.Millisecond)
	}
	for _, note := range []string{"dropped", "ended", "again"} {
		r, w := pipe(t)
		if err := p.Keep(t.Context(), []*os.File{w}, []byte(note)); err != nil {
			t.Fatalf("%s: %v", note, err)
		}
		if err := Stay(root); !errors.Is(err, errListens) {
			t.Errorf("%s: a second keeper: got %v, want %v", note, err, errListens)
		}
		if err := p.Holds(t.Context(), []byte(note)); err != nil {
			t.Errorf("%s: %v", note, err)
		}
		switch note {
		case "dropped":
			if err := p.Drop(t.Context()); err != nil {
				t.Error(err)
			}
		case "ended":
			r.Close()
		}
		if note == "again" {
			break
		}
		for err = nil; !errors.Is(err, fs.ErrNotExist); { // the keeper looks each second
			_, _, err = p.Take(t.Context())
		}
	}
}
