package node

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/durable"
)

// shortDir is t.TempDir for sockets: its path does not grow with the test's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serveControl answers as a daemon would, and returns its client.
func serveControl(t *testing.T, handler http.Handler) *Control {
	t.Helper()
	root := shortDir(t)
	listener, err := net.Listen("unix", ControlSocket(root))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return NewControl(root)
}

// Only what the node has not mounted is "not mounted": other errors that are
// about something missing are told as they are.
func TestErrorsOverTheSocket(t *testing.T) {
	var answer error
	c := serveControl(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { reply(w, struct{}{}, answer) }))
	answer = fmt.Errorf("unmount /x: %w", errNotBound)
	if err := c.Unmount(t.Context(), "/x"); !errors.Is(err, ErrNotMounted) || !strings.Contains(err.Error(), "/x") {
		t.Errorf("error %v", err)
	}
	answer = fmt.Errorf("mount at /x: %w", fs.ErrNotExist)
	if err := c.Mount(t.Context(), "name", "", "/x"); errors.Is(err, ErrNotMounted) || err == nil || err.Error() != answer.Error() {
		t.Errorf("error %v", err)
	}
	answer = nil
	if err := c.Mount(t.Context(), "name", "", "/x"); err != nil {
		t.Error(err)
	}
	if _, err := NewControl(t.TempDir()).Status(t.Context()); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("nobody there: %v", err)
	}
}

func TestBindsAreRemembered(t *testing.T) {
	root := t.TempDir()
	b := openBinds(root, &durable.Leftovers{})
	one, two := Bind{Dir: "/one", Name: "a:1", Chain: "sha256:a"}, Bind{Dir: "/two", Name: "a:1", Chain: "sha256:a"}
	if err := errors.Join(b.put(one), b.put(two), b.remove("/one")); err != nil {
		t.Fatal(err)
	}
	if err := b.put(two); err == nil || !strings.Contains(err.Error(), "lighter unmount /two") {
		t.Errorf("twice: %v", err)
	}
	again := openBinds(root, &durable.Leftovers{})
	if list := again.list(); len(list) != 1 || list[0] != two {
		t.Errorf("remembered: %+v", list)
	}
	if err := os.WriteFile(filepath.Join(root, "binds.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also of the next daemon
		var left durable.Leftovers
		damaged := openBinds(root, &left)
		if all := left.List(); len(damaged.list()) != 0 || !damaged.unknown || len(all) != 1 || all[0].Path != damaged.path+broken {
			t.Errorf("damaged: %+v, left %+v", damaged.list(), all)
		}
	}
	// What cannot be remembered is not mounted.
	b.path = filepath.Join(root, "missing", "binds.json")
	if err := b.put(one); err == nil || len(b.list()) != 1 {
		t.Errorf("%v, %+v", err, b.list())
	}
}
