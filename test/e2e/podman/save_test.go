//go:build e2e

package podman

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"lighter/test/testkit/distribution"
	"lighter/test/testkit/images"
	tars "lighter/test/testkit/tarball"
)

const built = "localhost/built:1" // on app

// build commits a container of app.
func (m *machine) build() {
	m.t.Helper()
	m.podman("run", "--name", "box", app, "sh", "-c", "echo built > /etc/built; rm /etc/lower")
	m.podman("commit", "box", built)
	m.podman("rm", "box")
}

// diffIDs returns the diffIDs of an image, after its layers were read and found to have them.
func (m *machine) diffIDs(image v1.Image, err error) []v1.Hash {
	m.t.Helper()
	if err != nil {
		m.t.Error(err)
		return nil
	}
	file, err := image.ConfigFile()
	if err != nil {
		m.t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != len(file.RootFS.DiffIDs) {
		m.t.Fatalf("got %d layers, %v, want %d", len(layers), err, len(file.RootFS.DiffIDs))
	}
	for n, layer := range layers {
		tar, err := layer.Uncompressed()
		if err != nil {
			m.t.Fatal(err)
		}
		if got, _, err := v1.SHA256(tar); err != nil || got != file.RootFS.DiffIDs[n] {
			m.t.Errorf("layer %d is %s, %v, want %s", n, got, err, file.RootFS.DiffIDs[n])
		}
		if err := tar.Close(); err != nil {
			m.t.Error(err)
		}
	}
	return file.RootFS.DiffIDs
}

// original returns the diffIDs of an image, as the hub has it.
func (m *machine) original(image string) []v1.Hash {
	m.t.Helper()
	ref, err := name.ParseReference(hub+"/"+image, name.Insecure)
	if err != nil {
		m.t.Fatal(err)
	}
	return m.diffIDs(remote.Image(ref))
}

// archive returns the image of an archive that `podman save` has written.
func (m *machine) archive(format, file string) (v1.Image, error) {
	if format == "docker-archive" {
		return tarball.ImageFromPath(file, nil)
	}
	dir, err := os.MkdirTemp(m.dir, "archive-")
	if err != nil {
		return nil, err
	}
	if out, err := exec.Command("tar", "-C", dir, "-xf", file).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return images.Open(dir)
}

// checkSave saves an image of the store, and one that is built on it, and loads both elsewhere. The
// user may write in dir, and in run, whose path is short, as Podman requires.
func (m *machine) checkSave(dir, run string) {
	m.t.Helper()
	m.build()
	want := m.original(app)
	elsewhere := []string{"podman", "--root", dir + "/other", "--runroot", run, "--storage-driver", "overlay",
		"--cgroup-manager", "cgroupfs", "--runtime", "runc", "--events-backend", "none"}
	for _, c := range []struct{ image, format, file, text string }{
		{app, "docker-archive", "both", "upper"}, {built, "oci-archive", "built", "built"},
	} {
		file := filepath.Join(dir, c.format)
		m.podman("save", "--format", c.format, "-o", file, c.image)
		if got := m.diffIDs(m.archive(c.format, file)); len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			m.t.Errorf("%s: got diffIDs %s, want those of the original: %s", c.image, got, want)
		}
		if _, err := m.run(append(elsewhere, "load", "-i", file)...); err != nil {
			m.t.Error(err)
		}
		out, err := m.run(append(elsewhere, "run", "--rm", "--net", "host", "--ulimit", "nofile=1024:1024", "--ulimit",
			"nproc=1000:1000", c.image, "cat", "/etc/"+c.file)...)
		if err != nil {
			m.t.Error(err)
		}
		m.want(out, c.text)
		if err := os.Remove(file); err != nil {
			m.t.Error(err)
		}
	}
}

// `podman save` writes the layers of the original, which are not on this machine.
func TestSave(t *testing.T) {
	m := newMachine(t)
	m.checkSave("/var/lib/containers", "/run/containers/other")
	m.podman("rmi", built)
}

func TestSaveRootless(t *testing.T) {
	m := newMachine(t)
	m.beUser()
	const run = "/run/containers/joe"
	if err := errors.Join(os.Mkdir(run, 0o700), os.Chown(run, 1234, 1234)); err != nil {
		t.Fatal(err)
	}
	m.checkSave(filepath.Join(m.dir, "home"), run)
	m.podman("rmi", built)
}

// Images of the store, and one that is built on it, can be pushed to a registry by each tool.
func TestPush(t *testing.T) {
	m := newMachine(t)
	m.build()
	registry := distribution.Start(t)
	want := m.original(app)
	storage := "containers-storage:[overlay@/var/lib/containers/storage+/run/containers/storage" +
		":additionalimagestore=" + m.store + "]"
	m.podman("push", "--tls-verify=false", app, registry+"/podman:1")
	m.podman("push", "--tls-verify=false", built, registry+"/built:1")
	m.buildah("push", "--tls-verify=false", app, "docker://"+registry+"/buildah:1")
	if _, err := m.run("skopeo", "copy", "--insecure-policy", "--dest-tls-verify=false", storage+app,
		"docker://"+registry+"/skopeo:1"); err != nil {
		t.Error(err)
	}
	for _, image := range []string{"podman", "built", "buildah", "skopeo"} {
		ref, err := name.ParseReference(registry+"/"+image+":1", name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.diffIDs(remote.Image(ref)); len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("%s: got diffIDs %s, want those of the original: %s", image, got, want)
		}
	}
	m.podman("rmi", built)
}

// A layer is saved byte for byte whatever is in its tar stream.
func TestSaveOddLayers(t *testing.T) {
	m := newMachine(t)
	image, err := images.Open(images.Dir("base"))
	if err == nil {
		image, err = withHistory(image)
	}
	for _, chain := range tars.Odd() {
		if chain.Refused || err != nil || !strings.HasPrefix(chain.Name, "names: ") {
			continue
		}
		for _, layer := range chain.Layers {
			image, err = mutate.Append(image, mutate.Addendum{Layer: static.NewLayer(layer, types.OCIUncompressedLayer),
				History: v1.History{CreatedBy: chain.Name}})
		}
	}
	const odd = "reg.example.org/odd:1"
	if err == nil {
		err = add(image, odd)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer m.remove(odd)
	m.waitFor(odd, true)
	file := filepath.Join(m.dir, "odd")
	m.podman("save", "--format", "oci-archive", "-o", file, odd)
	if got, want := m.diffIDs(m.archive("oci-archive", file)), m.original(odd); !slices.Equal(got, want) {
		t.Errorf("got diffIDs %s, want %s", got, want)
	}
}

// proxy is an HTTP proxy in front of the hub.
type proxy struct {
	*httptest.Server
	away atomic.Bool                               // it answers nothing
	body atomic.Pointer[func(io.Reader) io.Reader] // what it does with the bytes of large blobs
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: hub})
	p := &proxy{}
	forward.ModifyResponse = func(res *http.Response) error {
		if change := p.body.Load(); change != nil && strings.Contains(res.Request.URL.Path, "/blobs/") &&
			res.ContentLength > 1<<20 {
			res.Body = struct {
				io.Reader
				io.Closer
			}{(*change)(res.Body), res.Body}
		}
		return nil
	}
	forward.ErrorLog = log.New(io.Discard, "", 0) // it ends answers
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.away.Load() {
			panic(http.ErrAbortHandler)
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

// flipped flips a bit of what it reads.
type flipped struct {
	io.Reader
	at int
}

func (f *flipped) Read(b []byte) (int, error) {
	n, err := f.Reader.Read(b)
	if f.at >= 0 && f.at < n {
		b[f.at] ^= 1
	}
	f.at -= n
	return n, err
}

// If the hub is away, or gives a layer with a flipped bit, saving and pushing fail, soon and with
// an error. They succeed once the hub gives the layer.
func TestSaveFails(t *testing.T) {
	p := newProxy(t)
	m := newMachineBehind(t, p.URL)
	file := filepath.Join(m.dir, "saved")
	fails := func(command ...string) {
		t.Helper()
		began := time.Now()
		if out, err := m.tryPodman(command...); err == nil {
			t.Errorf("it succeeds: %s", out)
		} else {
			m.want(err.Error(), ".tar-split.gz: input/output error")
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it fails after %v, want a minute at most", took)
		}
	}
	flip := func(r io.Reader) io.Reader { return &flipped{r, 1 << 20} }
	p.body.Store(&flip)
	fails("save", "-o", file, app)
	said, err := os.ReadFile(filepath.Join(m.dir, "node.log"))
	if err != nil {
		t.Fatal(err)
	}
	m.want(string(said), "cannot give a layer of the image store to a tool")
	p.body.Store(nil)
	p.away.Store(true)
	fails("save", "-o", file, app)
	fails("push", app, "dir:"+filepath.Join(m.dir, "pushed"))
	p.away.Store(false)
	_ = os.Remove(file)
	m.podman("save", "-o", file, app)
	if got, want := m.diffIDs(m.archive("docker-archive", file)), m.original(app); !slices.Equal(got, want) {
		t.Errorf("got diffIDs %s, want %s", got, want)
	}
}

// held passes some bytes, and then no more.
type held struct {
	io.Reader
	left    int
	reached chan<- struct{}
	release <-chan struct{}
}

func (h *held) Read(b []byte) (int, error) {
	if h.left <= 0 {
		close(h.reached)
		<-h.release
		return 0, errors.New("no more bytes")
	}
	n, err := h.Reader.Read(b)
	h.left -= n
	return n, err
}

// If the node is killed while a layer is saved, saving fails, and leaves nothing in the store. The
// next node saves it. Other commands do not wait for the layer.
func TestKilledDuringSave(t *testing.T) {
	p := newProxy(t)
	m := newMachineBehind(t, p.URL)
	m.podman("run", "--rm", app)
	before := m.files()
	reached, release := make(chan struct{}), make(chan struct{})
	hold := func(r io.Reader) io.Reader { return &held{r, 8 << 20, reached, release} }
	p.body.Store(&hold)
	file := filepath.Join(m.dir, "saved")
	saved := make(chan error, 1)
	go func() {
		_, err := m.tryPodman("save", "-o", file, app)
		saved <- err
	}()
	select {
	case <-reached:
	case err := <-saved:
		t.Fatalf("it was saved without the hub's answer, %v", err)
	}
	m.want(m.podman("run", "--rm", app), "upper")
	m.killNode()
	p.body.Store(nil)
	close(release)
	if err := <-saved; err == nil {
		t.Error("it was saved without a node")
	}
	m.startNode()
	if after := m.files(); !slices.Equal(after, before) {
		t.Errorf("the store has files %s, want %s", after, before)
	}
	_ = os.Remove(file)
	m.podman("save", "-o", file, app)
	if got, want := m.diffIDs(m.archive("docker-archive", file)), m.original(app); !slices.Equal(got, want) {
		t.Errorf("got diffIDs %s, want %s", got, want)
	}
}

// files returns the paths of the store's files.
func (m *machine) files() (paths []string) {
	m.t.Helper()
	err := filepath.WalkDir(m.store, func(path string, d fs.DirEntry, err error) error {
		if path == filepath.Join(m.store, "trees") {
			return fs.SkipDir
		}
		paths = append(paths, path)
		return err
	})
	if err != nil && !errors.Is(err, syscall.ENOTCONN) {
		m.t.Fatal(err)
	}
	return paths
}
