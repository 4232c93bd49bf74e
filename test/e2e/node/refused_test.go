//go:build e2e

package node

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lighter/format/index"
	"lighter/node/control"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
)

// The next node cannot verify the statement about a tree that a container uses, with and without a
// hub. The container still reads all bytes, and the status names the statement. Once a statement
// about the tree can be verified again, no statement is refused.
func TestRefusedStatement(t *testing.T) {
	for name, refuse := range map[string]func(t *testing.T, d *daemon) (undo func()){"bit": flipStatement,
		"key": replaceKey} {
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			for hub, args := range map[string][]string{"hub": nil, "no-hub": {"--hub", "http://127.0.0.1:1"}} {
				t.Run(name+"-"+signal.String()+"-"+hub, func(t *testing.T) {
					d := startNode(t, newRoot(t), "--address", "")
					dir, merged := used(t, d)
					shows(t, merged)
					eventually.Holds(t, "the complete image", func() bool { return isCached(t, d) })
					withHub := d.args
					d.end(signal)
					undo := refuse(t, d)
					d.args = append(slices.Clone(withHub), args...)
					d.start()
					showsAnew(t, merged)
					if !strings.Contains(d.said(), "a statement is refused") || !strings.Contains(d.said(), "tools:1") {
						t.Errorf("the node's log does not name the refused statement of tools:1:\n%s", d.said())
					}
					if name == "key" || hub == "no-hub" { // otherwise the hub's statement replaces the damaged one
						refused(t, d)
					}
					d.end(syscall.SIGTERM)
					undo()
					d.args = withHub
					d.start()
					showsAnew(t, merged)
					showsAnew(t, dir)
					eventually.Holds(t, "an accepted statement",
						func() bool { return len(status(t, d.root).Refused) == 0 })
					run(t, "unmount", "--root", d.root, dir).good()
				})
			}
		}
	}
}

// isCached reports whether all chunks of tools:1 are in the node's cache.
func isCached(t *testing.T, d *daemon) bool {
	t.Helper()
	images, err := control.New(d.root).Images(t.Context(), "tools:1")
	if err != nil || len(images) != 1 {
		t.Fatalf("images that tools:1 names: %+v (%v), want one", images, err)
	}
	return images[0].Content.CachedChunks == images[0].Content.Chunks
}

// refused checks that the node refuses the statement of tools:1 and no other one, and that the
// status and the doctor name it.
func refused(t *testing.T, d *daemon) {
	t.Helper()
	s := status(t, d.root)
	if len(s.Refused) != 1 || len(s.Binds) != 1 || s.Refused[0].Chain != s.Binds[0].Chain ||
		len(s.Refused[0].Trees) != 1 ||
		!slices.Equal(s.Refused[0].Images, []string{"tools:1"}) || s.Refused[0].Cause == "" ||
		s.Refused[0].Repair == "" {
		t.Errorf("refused %+v, user-facing mounts %+v; want the statement of tools:1, refused", s.Refused, s.Binds)
	}
	for line, words := range map[string][]string{"status": {"REFUSED STATEMENT", "tools:1", "what to do"},
		"doctor": {"the statement of tools:1 is refused"}} {
		out := run(t, line, "--root", d.root).stdout // doctor exits with code 1
		for _, word := range words {
			if !strings.Contains(out, word) {
				t.Errorf("the output of %s does not contain %q:\n%s", line, word, out)
			}
		}
	}
}

// Node and keeper were killed. The next node has no hub, and mounts a tree again although its
// statement is refused. After unmount, neither the tree nor the statement is left.
func TestRefusedStatementIsMounted(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	dir := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	shows(t, dir)
	eventually.Holds(t, "the complete image", func() bool { return isCached(t, d) })
	d.lose()
	replaceKey(t, d)
	d.args = append(d.args, "--hub", "http://127.0.0.1:1")
	d.start()
	refused(t, d)
	showsAnew(t, dir)
	run(t, "unmount", "--root", d.root, dir).good()
	for _, kind := range []string{"trees", "chains"} {
		if left, err := os.ReadDir(filepath.Join(d.root, kind)); err != nil || len(left) > 0 {
			t.Errorf("%s/ contains %v (%v), want nothing", kind, left, err)
		}
	}
}

// showsAnew does what shows does, with an empty page cache.
func showsAnew(t *testing.T, dir string) {
	t.Helper()
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	shows(t, dir)
}

// flipStatement flips a bit of the signature in the only statement on the disk. undo does nothing,
// because the hub's statement replaces the damaged one.
func flipStatement(t *testing.T, d *daemon) (undo func()) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(d.root, "chains", "*"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("statements on the disk: %v (%v), want one", paths, err)
	}
	b, err := os.ReadFile(paths[0])
	if err == nil {
		b[strings.Index(string(b), "signature")+20] ^= 1
		err = os.WriteFile(paths[0], b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {}
}

// replaceKey pins a key that has signed nothing, instead of the hub's key.
func replaceKey(t *testing.T, d *daemon) (undo func()) {
	t.Helper()
	path := filepath.Join(d.root, "hub.keys")
	right, err := os.ReadFile(path)
	public, _, failed := ed25519.GenerateKey(nil)
	if err := errors.Join(err, failed, os.WriteFile(path, []byte(index.FormatKey(public)), 0o600)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.WriteFile(path, right, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
