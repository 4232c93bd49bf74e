//go:build e2e

package podman

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/workdir"
)

// library is a process that uses the store as CRI-O does, with the newest library
// (test/tools/storage). Its own storage stays open until the test ends.
type library struct {
	m     *machine
	in    io.WriteCloser
	lines *bufio.Scanner
}

func newLibrary(m *machine) *library {
	m.t.Helper()
	work, err := workdir.Path()
	if err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(work, "tools", "storage"), filepath.Join(m.dir, "library"), m.store)
	in, err := cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			m.t.Errorf("the library's process: %v", err)
		}
		// The library has made the directory of its layers a mount.
		_ = unix.Unmount(filepath.Join(m.dir, "library/root/overlay"), unix.MNT_DETACH)
	})
	return &library{m, in, bufio.NewScanner(out)}
}

// try runs a command of the library's process, and returns its result.
func (l *library) try(words ...string) (answer string, err error) {
	l.m.t.Helper()
	if _, err := fmt.Fprintln(l.in, strings.Join(words, " ")); err != nil {
		l.m.t.Fatal(err)
	}
	if !l.lines.Scan() {
		l.m.t.Fatalf("%q: the library's process has ended", words)
	}
	answer, ok := strings.CutPrefix(l.lines.Text(), "ok ")
	if !ok {
		return "", fmt.Errorf("%q: %s", words, l.lines.Text())
	}
	return answer, nil
}

// do runs a command that has to work.
func (l *library) do(words ...string) (answer string) {
	l.m.t.Helper()
	answer, err := l.try(words...)
	if err != nil {
		l.m.t.Error(err)
	}
	return answer
}

// The newest library, with which CRI-O and Podman 5 are built, lists the store's images, finds them
// by name and ID, reads their configs, and runs containers of them. A pull fetches no layer.
func TestLibrary(t *testing.T) {
	m := newMachine(t)
	l := newLibrary(m)
	m.want(l.do("images"), base)
	m.want(l.do("images"), app)
	id := l.do("image", app)
	if again := l.do("image", id); len(id) != 64 || again != id {
		t.Errorf("the image has the IDs %q and %q, want the same", id, again)
	}
	m.want(l.do("config", app), "bytes=true")
	l.do("create", "box", id)
	root := l.do("mount", "box")
	text, err := os.ReadFile(filepath.Join(root, "etc/debian_version"))
	if err != nil || !strings.HasPrefix(string(text), "12") {
		t.Errorf("a file of the container: %q, %v; want Debian 12", text, err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/new"), []byte("x"), 0o600); err != nil {
		t.Errorf("write in the container: %v", err)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(table), m.store+"/trees/") {
		t.Error("the image's tree is not mounted by the node: the container is not lazy")
	}
	l.do("unmount", "box")
	l.do("delete", "box")
	out := l.do("pull", hub+"/reg.example.org/app:1", "localhost/pulled:1")
	if strings.Contains(out, "layer") {
		t.Errorf("a pull has fetched %s, want no layer", out)
	}
	m.want(l.do("images"), "localhost/pulled:1")
	l.do("create", "of-pulled", "localhost/pulled:1")
	m.want(l.do("mount", "of-pulled"), m.dir)
	l.do("unmount", "of-pulled")
	l.do("delete", "of-pulled")
	if _, err := l.try("image", "reg.example.org/none:1"); err == nil {
		t.Error("an image that is not there: got no error")
	}
}

// A storage that is open sees the names that the store gets and loses. A container keeps its image
// when the hub has removed it.
func TestLibrarySeesChanges(t *testing.T) {
	m := newMachine(t)
	l := newLibrary(m)
	const name = "reg.example.org/library:1"
	if out := l.do("images"); strings.Contains(out, name) {
		t.Fatalf("the image is there too early: %s", out)
	}
	ids := map[string]string{}
	for _, label := range []string{"first", "second"} {
		if err := add(labelled(t, "library "+label), name); err != nil {
			t.Fatal(err)
		}
		m.eventually("the library finds the "+label+" image", func() bool {
			id, err := l.try("image", name)
			ids[label] = id
			return err == nil && (label == "first" || id != ids["first"])
		})
		l.do("create", label, name)
	}
	m.remove(name)
	m.eventually("the library does not find the removed image", func() bool {
		_, err := l.try("image", name)
		return err != nil
	})
	m.want(l.do("images"), app)
	for label := range ids {
		root := l.do("mount", label)
		if _, err := os.Stat(filepath.Join(root, "etc/debian_version")); err != nil {
			t.Errorf("the %s container of a removed image: %v", label, err)
		}
		l.do("unmount", label)
		l.do("delete", label)
	}
}
