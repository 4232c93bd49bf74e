//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/opencontainers/go-digest"

	"lighter/node/front/containerd"
	"lighter/test/testkit/fswalk"
	"lighter/test/testkit/workdir"
)

// snapshotDaemon is a containerd with the snapshotter as a proxy plugin, and a registry that counts
// requests for layers. All files of containerd and of the snapshotter are below dir.
type snapshotDaemon struct {
	*snapshotWorld
	dir    string       // a short path, because sockets are in it
	image  string       // the image's reference
	layers atomic.Int32 // number of requests for layers
	stop   func() error // stops the snapshotter
}

const snapshotDaemonConfig = `version = 4
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
  "io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp"]

[plugins."io.containerd.server.v1.grpc"]
  address = "%[1]s/c.sock"
[plugins."io.containerd.server.v1.ttrpc"]
  address = "%[1]s/c.sock.ttrpc"
[proxy_plugins.lighter]
  type = "snapshot"
  address = "%[1]s/l.sock"
  capabilities = ["rebase"]
[plugins."io.containerd.transfer.v1.local"]
  max_concurrent_unpacks = %[2]d
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "lighter"
`

// snapshotTool returns the path of a program that test/setup has built.
func snapshotTool(t *testing.T, name string) string {
	t.Helper()
	work, err := workdir.Path()
	tool := filepath.Join(work, "tools", name)
	if err == nil {
		_, err = os.Stat(tool)
	}
	if err != nil {
		t.Fatalf("%v: run test/setup tools first", err)
	}
	return tool
}

// newSnapshotDaemon starts containerd, the snapshotter and the registry. known is the number of
// layers that the hub knows, from the bottom. unpacks is the number of layers that containerd
// unpacks at the same time.
func newSnapshotDaemon(t *testing.T, known, unpacks int) *snapshotDaemon {
	t.Helper()
	d := &snapshotDaemon{snapshotWorld: newSnapshotWorld(t, known)}
	var err error
	if d.dir, err = os.MkdirTemp("", "l"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A failed test may have left mounts.
		if err := errors.Join(mount.UnmountRecursive(d.dir, 0), os.RemoveAll(d.dir)); err != nil {
			t.Error(err)
		}
	})
	d.snapshotWorld.dir = filepath.Join(d.dir, "snapshots")
	registry := httptest.NewServer(http.HandlerFunc(d.serveRegistry))
	t.Cleanup(registry.Close)
	d.image = strings.TrimPrefix(registry.URL, "http://") + "/image:latest"
	d.start(t)
	t.Cleanup(func() {
		if err := d.stop(); err != nil {
			t.Error(err)
		}
	})
	d.startContainerd(t, fmt.Sprintf(snapshotDaemonConfig, d.dir, unpacks))
	return d
}

// startContainerd starts containerd, and waits until it reports that it is ready. containerd
// reports this with systemd's protocol.
func (d *snapshotDaemon) startContainerd(t *testing.T, config string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: filepath.Join(d.dir, "notify")})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	var log bytes.Buffer
	cmd := exec.Command(snapshotTool(t, "containerd"), "--config", filepath.Join(d.dir, "config.toml"))
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify.LocalAddr().String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		cmd.Wait() // an error would only say that the signal ended containerd
		if t.Failed() {
			t.Logf("containerd's log:\n%s", &log)
		}
	})
	if err := notify.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	report := make([]byte, 256)
	if n, err := notify.Read(report); err != nil || !strings.Contains(string(report[:n]), "READY=1") {
		t.Fatalf("wait for containerd: got %q (%v), want READY=1", report[:n], err)
	}
}

// start starts the snapshotter, or starts it again.
func (d *snapshotDaemon) start(t *testing.T) {
	t.Helper()
	d.hub.holds = nil // forgets those of the previous snapshotter, which has ended
	sn, err := containerd.New(containerd.Config{Dir: d.snapshotWorld.dir, Log: discard}, d.hub)
	if err != nil {
		t.Fatal(err)
	}
	_, stop, err := serveSnapshots(filepath.Join(d.dir, "l.sock"), sn)
	if err != nil {
		t.Fatal(err)
	}
	d.stop = func() error {
		defer sn.Close()
		return stop()
	}
}

func (d *snapshotDaemon) serveRegistry(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v2/" {
		return
	}
	id := digest.Digest(path.Base(r.URL.Path))
	if id == "latest" {
		id = d.snapshotWorld.image.Digest
	}
	b, ok := d.blobs[id]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if id == d.snapshotWorld.image.Digest {
		w.Header().Set("Content-Type", d.snapshotWorld.image.MediaType)
	} else if b[0] != '{' && r.Method == http.MethodGet {
		d.layers.Add(1)
	}
	w.Header().Set("Docker-Content-Digest", id.String())
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}

// ctr runs containerd's client and returns its output.
func (d *snapshotDaemon) ctr(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(snapshotTool(t, "ctr"),
		append([]string{"--address", filepath.Join(d.dir, "c.sock")}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// check runs garbage collection, mounts the image in a namespace, and compares its files with the
// whole image. Before ctr mounts the image, it looks up each layer's snapshot.
func (d *snapshotDaemon) check(t *testing.T, namespace string) {
	t.Helper()
	d.ctr(t, "-n", namespace, "content", "prune", "references")
	target, err := os.MkdirTemp(d.dir, "m")
	if err != nil {
		t.Fatal(err)
	}
	d.ctr(t, "-n", namespace, "images", "mount", "--snapshotter", "lighter", "--rw", d.image, target)
	found, err := fswalk.Walk(target)
	d.ctr(t, "-n", namespace, "images", "unmount", "--snapshotter", "lighter", "--rm", target)
	if err != nil {
		t.Fatal(err)
	}
	compareSnapshot(t, d.whole, found)
}

// pullWithCtr pulls the image. It checks how many layers containerd fetches.
func (d *snapshotDaemon) pullWithCtr(t *testing.T, namespace string, layers int32) {
	t.Helper()
	d.layers.Store(0)
	d.ctr(t, "-n", namespace, "images", "pull", "--snapshotter", "lighter", "--plain-http", d.image)
	if n := d.layers.Load(); n != layers {
		t.Errorf("containerd fetched %d layers, want %d", n, layers)
	}
}

// A real containerd pulls an image, mounts it before and after a restart of the snapshotter, pulls
// it in a second namespace, and removes it. It sends no labels that describe the image.
func TestSnapshotDaemon(t *testing.T) {
	for _, unpacks := range []int{1, 3} {
		for _, known := range []int{0, 2, 4} {
			t.Run(fmt.Sprintf("%d known %d unpacks", known, unpacks), func(t *testing.T) {
				d := newSnapshotDaemon(t, known, unpacks)
				d.pullWithCtr(t, "one", int32(len(d.chains)-known))
				d.check(t, "one")
				if err := d.stop(); err != nil {
					t.Fatal(err)
				}
				d.start(t)
				d.check(t, "one")
				// If all layers are lazy, a pull in another namespace gets them without the hub.
				d.setGone(known == len(d.chains))
				d.pullWithCtr(t, "two", int32(len(d.chains)-known))
				d.setGone(false)
				d.check(t, "two")
				for _, namespace := range []string{"one", "two"} {
					d.ctr(t, "-n", namespace, "images", "rm", "--sync", d.image)
				}
				d.empty(t)
			})
		}
	}
}
