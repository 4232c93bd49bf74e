//go:build e2e

package podman

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"lighter/test/testkit/images"
	"lighter/test/testkit/port"
	"lighter/test/testkit/site"
	tars "lighter/test/testkit/tarball"
)

// The images of the hub: a Debian, and two layers on it.
const (
	base = "reg.example.org/base:1"
	app  = "reg.example.org/app:1"
)

var (
	lighter string // the binary that `make build` makes
	hub     string // HOST:PORT
	layouts string // directory of OCI layouts
)

func TestMain(m *testing.M) { os.Exit(site.EnclosedWith(prepare, m.Run)) }

// prepare starts a hub with the images.
func prepare() (stop func() error, err error) {
	if lighter, err = site.Binary(); err != nil {
		return nil, err
	}
	if hub, err = port.Loopback(); err != nil {
		return nil, err
	}
	if layouts, err = os.MkdirTemp("", "hub-"); err != nil {
		return nil, err
	}
	config := fmt.Sprintf("listen = %q\nregistry_hosts = [%q]\n", hub, hub)
	if err := write(filepath.Join(layouts, "hub.toml"), config); err != nil {
		return nil, err
	}
	cmd, err := background(filepath.Join(layouts, "hub.log"), lighter, "hub", "--config",
		filepath.Join(layouts, "hub.toml"), "--root", filepath.Join(layouts, "root"))
	if err != nil {
		return nil, err
	}
	stop = func() error { return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()) }
	layers, err := images.Open(images.Dir("base"))
	if err == nil {
		layers, err = withHistory(layers)
	}
	if err == nil {
		err = add(layers, base)
	}
	if err == nil {
		layers, err = onTop(layers)
	}
	if err == nil {
		err = add(layers, app)
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

func write(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }

func background(log string, argv ...string) (*exec.Cmd, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, cmd.Start()
}

// withHistory returns an image with one line of history for each layer, which a commit needs.
func withHistory(image v1.Image) (v1.Image, error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	image = mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, layer := range layers {
		history := v1.History{CreatedBy: "base"}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: history}); err != nil {
			return nil, err
		}
	}
	return mutate.Config(image, file.Config)
}

// onTop returns an image of two layers on another image. The upper one removes a file of the lower
// one.
func onTop(image v1.Image) (v1.Image, error) {
	for _, items := range [][]tars.Item{
		{tars.File("etc/lower", "lower\n"), tars.File("etc/both", "lower\n"), tars.File("etc/gone", "gone\n")},
		{tars.File("etc/upper", "upper\n"), tars.File("etc/both", "upper\n"), tars.File("etc/.wh.gone", "")},
	} {
		var err error
		layer := static.NewLayer(tars.Of(items...), types.OCIUncompressedLayer)
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: "test"}})
		if err != nil {
			return nil, err
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config := *file.Config.DeepCopy()
	config.Env, config.Cmd, config.WorkingDir = append(config.Env, "WHO=app"), []string{"cat", "upper"}, "/etc"
	return mutate.Config(image, config)
}

// add adds an image to the hub. The hub may not listen yet.
func add(image v1.Image, name string) error {
	dir, err := os.MkdirTemp(layouts, "layout-")
	if err != nil {
		return err
	}
	if err := images.Write(dir, "1", image); err != nil {
		return err
	}
	for range 500 {
		var out []byte
		out, err = exec.Command(lighter, "add", "--hub", "http://"+hub, "oci:"+dir+":1", name).CombinedOutput()
		if err == nil {
			return nil
		}
		if err = fmt.Errorf("add %s: %w: %s", name, err, out); !strings.Contains(err.Error(), "refused") {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// machine is a node with an image store, and the storage of one user's Podman.
type machine struct {
	t     *testing.T
	dir   string
	store string
	node  *exec.Cmd
	as    []string // starts a program as the user
}

// newMachine starts a node, and waits until its store has the hub's images.
func newMachine(t *testing.T) *machine {
	t.Helper()
	return newMachineBehind(t, "http://"+hub)
}

// newMachineBehind starts a node that reaches the hub at a URL.
func newMachineBehind(t *testing.T, url string) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "machine-") // lower case, as Podman requires of names
	if err != nil {
		t.Fatal(err)
	}
	for d := dir; d != "/"; d = filepath.Dir(d) { // users without privileges use it, too
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m := &machine{t: t, dir: dir, store: filepath.Join(dir, "store")}
	for _, storage := range []string{"/var/lib/containers", "/run/containers", "/run/libpod"} {
		if err := errors.Join(os.MkdirAll(storage, 0o755), unix.Mount("none", storage, "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(storage, unix.MNT_DETACH) })
	}
	config := fmt.Sprintf(`root = %q
address = ""
containerd = ""
hubs = [%q]
image_store = %q
image_store_refresh = "1s"
`, m.root(), url, m.store)
	if err := write(filepath.Join(dir, "node.toml"), config); err != nil {
		t.Fatal(err)
	}
	m.startNode()
	t.Cleanup(func() {
		if m.node != nil {
			m.stopNode()
		}
		if out, err := exec.Command(lighter, "release", "--root", m.root()).CombinedOutput(); err != nil {
			t.Errorf("release: %v: %s", err, out)
		}
		if left := mountsBelow(t, dir); left != "" {
			t.Errorf("mounts are left: %s", left)
		}
	})
	m.waitFor(base, true)
	m.waitFor(app, true)
	return m
}

func (m *machine) root() string { return filepath.Join(m.dir, "node") }

func (m *machine) startNode() {
	m.t.Helper()
	var err error
	log := filepath.Join(m.dir, "node.log")
	if m.node, err = background(log, lighter, "node", "--config", filepath.Join(m.dir, "node.toml")); err != nil {
		m.t.Fatal(err)
	}
	m.eventually("the node is ready", func() bool {
		return exec.Command(lighter, "status", "--root", m.root()).Run() == nil
	})
}

func (m *machine) stopNode() {
	m.t.Helper()
	if err := errors.Join(m.node.Process.Signal(syscall.SIGTERM), m.node.Wait()); err != nil {
		log, _ := os.ReadFile(filepath.Join(m.dir, "node.log"))
		m.t.Errorf("stop the node: %v: %s", err, log)
	}
	m.node = nil
}

func mountsBelow(t *testing.T, dir string) (points string) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[1], dir+"/") {
			points += fields[1] + "\n"
		}
	}
	return points
}

func (m *machine) eventually(what string, is func() bool) {
	m.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			log, _ := os.ReadFile(filepath.Join(m.dir, "node.log"))
			m.t.Fatalf("not within two minutes: %s\n%s", what, log)
		}
	}
}

// waitFor waits until the store lists a name, or does not list it any more.
func (m *machine) waitFor(name string, listed bool) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("%s listed: %v", name, listed), func() bool {
		text, err := os.ReadFile(filepath.Join(m.store, "overlay-images", "images.json"))
		return err == nil && strings.Contains(string(text), `"`+name+`"`) == listed
	})
}

// run runs a command as the user, and returns its output. The command ends after two minutes at
// most.
func (m *machine) run(argv ...string) (string, error) {
	argv = append(append([]string{"timeout", "120"}, m.as...), argv...)
	out, err := exec.CommandContext(m.t.Context(), argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return string(out), err
}

// storage has the options that name the store.
func (m *machine) storage() []string {
	return []string{"--storage-driver", "overlay", "--storage-opt", "additionalimagestore=" + m.store}
}

func (m *machine) tryPodman(args ...string) (string, error) {
	argv := append([]string{"podman", "--cgroup-manager", "cgroupfs", "--runtime", "runc", "--events-backend", "none"},
		m.storage()...)
	if args[0] == "run" { // runc may not raise limits here
		args = append([]string{"run", "--net", "host", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"},
			args[1:]...)
	}
	return m.run(append(argv, args...)...)
}

// podman runs a podman command that has to work. A container's name should be no hexadecimal
// number: it may be the beginning of an image's ID.
func (m *machine) podman(args ...string) string {
	m.t.Helper()
	out, err := m.tryPodman(args...)
	if err != nil {
		m.t.Error(err)
	}
	return out
}

func (m *machine) buildah(args ...string) string {
	m.t.Helper()
	out, err := m.run(append(append([]string{"buildah"}, m.storage()...), args...)...)
	if err != nil {
		m.t.Error(err)
	}
	return out
}

// want checks that an output has a text.
func (m *machine) want(out, text string) {
	m.t.Helper()
	if !strings.Contains(out, text) {
		m.t.Errorf("got %q, want %q in it", out, text)
	}
}
