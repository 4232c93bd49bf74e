//go:build e2e

package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/durable"
	"lighter/test/testkit/eventually"
	"lighter/wire"
)

// statHelper is an environment variable. If it is set, the test program runs no tests: it stats a
// file, in the main thread, and prints the error.
const statHelper = "LIGHTER_TEST_STAT"

func init() {
	if path := os.Getenv(statHelper); path != "" {
		var stat syscall.Stat_t
		if err := syscall.Stat(path, &stat); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// slowMachine is a machine whose mounts wait until goOn is closed.
type slowMachine struct {
	machine
	tree        string
	begun, goOn chan struct{}
}

func (m *slowMachine) Mount(context.Context, string) (string, error) {
	close(m.begun)
	<-m.goOn
	return m.tree, nil
}

func (*slowMachine) NoteStart(string) {}

// oneImage is a hub with one image.
type oneImage struct{}

func (oneImage) Images(context.Context, string) ([]wire.Image, error) {
	return []wire.Image{{Name: "host/image:1", Chain: "sha256:1", State: wire.StateReady}}, nil
}

func (h oneImage) AllImages(ctx context.Context, _ int64) ([]wire.Image, error) {
	return h.Images(ctx, "")
}

// mountTree mounts a tree with one file until the test ends.
func mountTree(t *testing.T) string {
	t.Helper()
	dir, below, tree := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("overlay", tree, "overlay", unix.MS_RDONLY, "lowerdir="+dir+":"+below); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(tree, 0); err != nil {
			t.Error(err)
		}
	})
	return tree
}

// A signal does not interrupt a process that waits for a tree. A killed process waits no longer,
// even if it got a signal before.
func TestSignals(t *testing.T) {
	for name, c := range map[string]struct {
		path  string
		links bool
		kill  bool
	}{
		"a name":             {path: "host/image:1/file"},
		"a link":             {path: "1/file", links: true},
		"a killed process":   {path: "host/image:1/file", kill: true},
		"a killed link user": {path: "1/file", links: true, kill: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := &slowMachine{machine: machine{holders: map[string]int{}}, tree: mountTree(t),
				begun: make(chan struct{}), goOn: make(chan struct{})}
			log := slog.New(slog.NewTextHandler(t.Output(), nil))
			config := Config{Root: t.TempDir(), File: "list.json", Dir: t.TempDir(), Idle: time.Minute, Hub: oneImage{},
				Chains: m, Trees: m, Leftovers: &durable.Leftovers{Log: log}, Log: log}
			if c.links {
				config.Links = m
			}
			d := Open(config)
			if err := d.show(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), statHelper+"="+filepath.Join(d.dir, c.path))
			var out strings.Builder
			cmd.Stdout = &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			<-m.begun
			for range 60 {
				err := unix.Tgkill(cmd.Process.Pid, cmd.Process.Pid, unix.SIGURG)
				if err != nil && !errors.Is(err, unix.ESRCH) {
					t.Error(err)
				}
				time.Sleep(5 * time.Millisecond)
			}
			if c.kill {
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
				eventually.Holds(t, "the end of the killed process", func() bool { return len(ended) == 1 })
			}
			close(m.goOn)
			if err := <-ended; !c.kill && err != nil {
				t.Errorf("a process that gets signals: got %v: %s", err, out.String())
			}
			eventually.Holds(t, "the end of the mount", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return len(d.pending) == 0
			})
		})
	}
}
