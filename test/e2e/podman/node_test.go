//go:build e2e

package podman

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"lighter/test/testkit/images"
)

// labelled returns the image app with a label, so that it is another image.
func labelled(t *testing.T, label string) v1.Image {
	t.Helper()
	image, err := images.Open(images.Dir("base"))
	if err == nil {
		image, err = withHistory(image)
	}
	if err == nil {
		image, err = onTop(image)
	}
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.Config.Labels = map[string]string{"label": label}
	file.History = append(file.History, v1.History{CreatedBy: "LABEL label=" + label, EmptyLayer: true})
	if image, err = mutate.ConfigFile(image, file); err != nil {
		t.Fatal(err)
	}
	return image
}

func (m *machine) remove(name string) {
	m.t.Helper()
	if out, err := m.run(lighter, "rm", "--hub", "http://"+hub, name); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
}

// When a tag gets another image, containers of the previous one go on, and the previous image
// stays, named by its digest, because it was used. An image that was built on it can be removed. An
// unused image that is removed from the hub is gone; the new one counts as used, as it has the same
// layers.
func TestTags(t *testing.T) {
	m := newMachine(t)
	const name = "reg.example.org/moving:1"
	if err := add(labelled(t, "old"), name); err != nil {
		t.Fatal(err)
	}
	m.waitFor(name, true)
	m.want(m.podman("inspect", "--type", "image", name, "--format", "{{.Labels}}"), "old")
	m.podman("run", "--name", "box", name, "touch", "/etc/kept")
	if err := add(labelled(t, "new"), name); err != nil {
		t.Fatal(err)
	}
	// While the hub ingests the new image, it has none that is ready under this name.
	m.eventually("the new image", func() bool {
		out, err := m.tryPodman("inspect", "--type", "image", name, "--format", "{{.Labels}}")
		return err == nil && strings.Contains(out, "new")
	})
	m.podman("start", "--attach", "box")
	m.want(m.podman("diff", "box"), "A /etc/kept")
	m.podman("commit", "box", "localhost/kept:1")
	m.remove(name)
	m.waitFor(name, false)
	m.podman("start", "--attach", "box")
	m.podman("images")
	m.podman("rm", "box")
	m.want(m.podman("run", "--rm", "localhost/kept:1", "ls", "/etc/kept"), "kept")
	m.podman("rmi", "localhost/kept:1")
	gone := ""
	for _, id := range strings.Fields(m.podman("images", "--format", "{{.ID}}", "reg.example.org/moving")) {
		gone += m.podman("inspect", "--type", "image", id, "--format", "{{.Labels}} {{.RepoDigests}}")
	}
	m.want(gone, "map[label:old]")
	m.want(gone, "reg.example.org/moving@sha256:")
}

// A service that runs for long sees an image that the hub gets later.
func TestService(t *testing.T) {
	m := newMachine(t)
	socket := filepath.Join(m.dir, "podman.sock")
	argv := append(append([]string{"podman", "--cgroup-manager", "cgroupfs", "--runtime", "runc"}, m.storage()...),
		"system", "service", "--time", "0", "unix://"+socket)
	cmd, err := background(filepath.Join(m.dir, "service.log"), argv...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	lists := func(name string) bool {
		res, err := client.Get("http://podman/v4.0.0/libpod/images/json")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return err == nil && strings.Contains(string(text), `"`+name+`"`)
	}
	m.eventually("the service lists an image", func() bool { return lists(app) })
	const name = "reg.example.org/later:1"
	if lists(name) {
		t.Fatal("the image is there too early")
	}
	if err := add(labelled(t, "later"), name); err != nil {
		t.Fatal(err)
	}
	m.eventually("the service lists a new image", func() bool { return lists(name) })
	m.remove(name)
	m.eventually("the service does not list the image any more", func() bool { return !lists(name) })
}

// Containers do not notice that the node is replaced. Without a node, the tools work, and images
// that were used are there again with the next node, also if it was killed.
func TestNodeEnds(t *testing.T) {
	m := newMachine(t)
	m.podman("run", "-d", "--name", "box", app, "sleep", "infinity")
	for _, end := range []func(){m.stopNode, m.killNode} {
		end()
		m.want(m.podman("images"), "reg.example.org/app")
		if out, err := m.tryPodman("run", "--rm", app); err == nil {
			t.Errorf("a container starts without a node: %s", out)
		}
		m.want(m.podman("ps"), "sleep infinity")
		m.startNode()
		m.want(m.podman("exec", "box", "cat", "/etc/debian_version"), "12")
		m.want(m.podman("run", "--rm", app), "upper")
	}
	m.podman("rm", "-f", "-t", "0", "box")
}

func (m *machine) killNode() {
	m.t.Helper()
	if err := m.node.Process.Kill(); err != nil {
		m.t.Fatal(err)
	}
	_ = m.node.Wait() // it was killed
	m.node = nil
}

// A node that is killed while it changes the store leaves a store that the tools can read.
func TestKilledDuringChanges(t *testing.T) {
	m := newMachine(t)
	const rounds = 4
	for n := range rounds {
		name := fmt.Sprintf("reg.example.org/many:%d", n)
		if err := add(labelled(t, name), name); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(n) * 300 * time.Millisecond) // somewhere in or between two changes
		m.killNode()
		m.want(m.podman("images"), "reg.example.org/app")
		m.startNode()
	}
	m.waitFor("reg.example.org/many:3", true)
	m.want(m.podman("run", "--rm", "reg.example.org/many:3"), "upper")
	for n := range rounds {
		m.remove(fmt.Sprintf("reg.example.org/many:%d", n))
	}
}

// `lighter install podman` makes podman use the store without options, and `lighter uninstall
// podman` undoes it, unless something needs the store.
func TestInstall(t *testing.T) {
	m := newMachine(t)
	etc := filepath.Join(m.dir, "containers")
	if out, err := exec.Command("cp", "-rT", "/etc/containers", etc).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const conf = "/etc/containers/storage.conf"
	if err := os.RemoveAll(filepath.Join(etc, "storage.conf")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(etc, "/etc/containers", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount("/etc/containers", unix.MNT_DETACH)
	install := func(verb string, args ...string) (string, error) {
		return m.run(append([]string{lighter, verb, "podman", "--root", m.root()}, args...)...)
	}
	out, err := install("install")
	if err != nil {
		t.Fatal(err)
	}
	m.want(out, m.store)
	if out, err = m.run("podman", "images"); err != nil {
		t.Fatal(err)
	}
	m.want(out, "reg.example.org/app")
	if _, err = m.run("buildah", "from", app); err != nil {
		t.Fatal(err)
	}
	if out, err = install("uninstall"); err == nil {
		t.Errorf("it was uninstalled while a container needs the store: %s", out)
	} else {
		m.want(err.Error(), "-working-container")
	}
	if _, err = m.run("buildah", "rm", "--all"); err != nil {
		t.Fatal(err)
	}
	if _, err = install("uninstall"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(conf); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", conf, err)
	}
	if out, err = m.run("podman", "images"); err != nil || strings.Contains(out, "reg.example.org") {
		t.Errorf("got %s, %v after uninstall", out, err)
	}
}
