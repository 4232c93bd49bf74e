//go:build e2e

package podman

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"

	"lighter/test/testkit/images"
)

// An image that was never pulled starts at once, with the image's configuration and its merged
// tree. Little of it is fetched.
func TestRun(t *testing.T) {
	m := newMachine(t)
	out := m.podman("images")
	m.want(out, "reg.example.org/app")
	m.want(out, "true") // read-only
	m.want(m.podman("run", "--rm", app), "upper")
	m.want(m.podman("run", "--rm", app, "sh", "-c", "cat lower both; echo $WHO; ls gone || echo absent"),
		"lower\nupper\napp\n")
	m.want(m.podman("run", "--rm", app, "sh", "-c", "test -e gone || echo absent"), "absent")
	m.want(m.podman("inspect", "--type", "image", app, "--format",
		"{{.Config.WorkingDir}} {{len .RootFS.Layers}}"), "/etc 3")
	m.want(m.podman("history", app), "test")
	status, err := m.run(lighter, "status", "--root", m.root())
	if err != nil {
		t.Fatal(err)
	}
	m.want(status, "image store "+m.store+": 2 images")
	m.want(status, "mounted")
	if strings.Contains(status, "0 B received") {
		t.Errorf("nothing was fetched: %s", status)
	}
}

// A pull of a known image fetches no layer: the source has none.
func TestPull(t *testing.T) {
	m := newMachine(t)
	dir := filepath.Join(m.dir, "layout")
	all, err := filepath.Glob(filepath.Join(layouts, "layout-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if out, err := exec.Command("cp", "-rT", l, dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		path, err := layout.FromPath(dir)
		if err != nil {
			t.Fatal(err)
		}
		image, err := images.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := image.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		for _, layer := range manifest.Layers {
			if err := path.RemoveBlob(layer.Digest); err != nil {
				t.Fatal(err)
			}
		}
		out := m.podman("pull", "oci:"+dir+":1")
		m.want(out, "Storing signatures")
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	// From a registry, too.
	m.podman("pull", "--tls-verify=false", hub+"/"+app)
	m.want(m.podman("run", "--rm", hub+"/"+app, "cat", "both"), "upper")
	m.podman("rmi", "-f", hub+"/"+app)
}

// Whatever is built on an image of the store has only what was added.
func TestCommit(t *testing.T) {
	m := newMachine(t)
	m.podman("run", "--name", "box", app, "sh", "-c", "echo written > /etc/written; rm /etc/lower")
	diff := m.podman("diff", "box")
	m.want(diff, "A /etc/written")
	m.want(diff, "D /etc/lower")
	m.podman("commit", "box", "localhost/new:1")
	m.podman("rm", "box")
	m.want(m.podman("run", "--rm", "localhost/new:1", "sh", "-c", "cat written; ls lower || echo absent"), "written")
	m.want(m.podman("inspect", "--type", "image", "localhost/new:1", "--format", "{{len .RootFS.Layers}}"), "4")
	m.podman("rmi", "localhost/new:1")
}

// Buildah builds on an image of the store, and on an image that is only a part of others.
func TestBuildah(t *testing.T) {
	m := newMachine(t)
	for _, from := range []string{app, base} {
		m.buildah("from", "--name", "b", from)
		m.want(m.buildah("run", "--runtime", "runc", "--isolation", "chroot", "b", "cat", "/etc/debian_version"), "12")
		m.buildah("run", "--runtime", "runc", "--isolation", "chroot", "b", "sh", "-c", "echo x > /etc/added")
		m.buildah("commit", "b", "localhost/built:1")
		m.buildah("rm", "b")
		m.want(m.podman("run", "--rm", "localhost/built:1", "cat", "/etc/added"), "x")
		m.podman("rmi", "localhost/built:1")
	}
}

// Skopeo reads an image of the store.
func TestSkopeo(t *testing.T) {
	m := newMachine(t)
	out, err := m.run("skopeo", "inspect", "--config", "containers-storage:[overlay@/var/lib/containers/storage"+
		"+/run/containers/storage:additionalimagestore="+m.store+"]"+app)
	if err != nil {
		t.Fatal(err)
	}
	m.want(out, "WHO=app")
}
