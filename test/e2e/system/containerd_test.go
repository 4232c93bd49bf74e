//go:build e2e

package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"lighter/test/testkit/images"
	"lighter/test/testkit/pods"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/test/testkit/workdir"
)

// shipped returns the text of a configuration in deploy/containerd.
func shipped(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../../deploy/containerd", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Debian's containerd accepts the configurations in deploy/containerd for 1.x, and our containerd
// those for 2.x. Each containerd knows all keys of its configurations.
func TestShippedConfigurations(t *testing.T) {
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	for name, binaries := range map[string]string{"config-1.6.toml": site.Debian, "config-1.7.toml": site.Debian,
		"config-2.0.toml": site.Ours, "config-2.1.toml": site.Ours} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(shipped(t, name)), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(filepath.Join(work, binaries, "containerd"), "--config", path, "config",
			"dump").CombinedOutput()
		text := strings.ReplaceAll(string(out), "'", `"`)
		for _, want := range []string{"[proxy_plugins.lighter]", `address = "/run/lighter/lighter.sock"`,
			`snapshotter = "lighter"`} {
			if err != nil || !strings.Contains(text, want) {
				t.Errorf("containerd's dump of %s: %v: want %s in\n%s", name, err, want, out)
			}
		}
		if strings.Contains(text, "unknown key") {
			t.Errorf("%s has keys that containerd does not know:\n%s", name, out)
		}
	}
}

// Pulls through CRI, as by the kubelet, are lazy with Debian's containerd, and with ours in both of
// its pull modes: no layer is downloaded, and a container of the image uses a tree.
func TestCRI(t *testing.T) {
	modern := shipped(t, "config-2.1.toml")
	for name, o := range map[string]site.Options{
		"Debian's":         {Containerd: site.Debian, Config: shipped(t, "config-1.6.toml")},
		"transfer service": {Config: modern},
		"local pull": {Config: strings.Replace(modern, "[plugins.\"io.containerd.cri.v1.images\"]\n",
			"[plugins.\"io.containerd.cri.v1.images\"]\n    use_local_image_pull = true\n"+
				"    disable_snapshot_annotations = false\n", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, o, "+python")
			ref := site.Reference("python")
			moved := images.Received(t, s, func() {
				pods.Pull(t, s, ref, "")
			})
			if moved > 3<<20 {
				t.Errorf("the pull received %d bytes, want at most 3 MiB: no layer", moved)
			}
			runLazily(t, s, "k8s.io", ref)
			if o.Containerd != site.Debian { // with Debian's version, the test's client itself adds the SELinux label
				labelled(t, s, "k8s.io", ref)
			}
			root := s.Machine.NodeRoot()
			if o.Containerd == site.Debian {
				// see config-1.6.toml
				root = filepath.Join(filepath.Dir(root), "containerd/io.containerd.snapshotter.v1.lighter")
			}
			if got := pods.ImageDisk(t, s); got.FsID.Mountpoint != root {
				t.Errorf("file system that the kubelet watches: got %q, want %s", got.FsID.Mountpoint, root)
			}
			if err := s.Machine.CRI(t.Context(), "RemoveImage", pods.Object{"image": pods.Object{"image": ref}},
				nil); err != nil {
				t.Error(err)
			}
			// When a Go client pulls (clientPulls), Debian's containerd sets no labels that name
			// the image. So the node needs --trust chain.
			if o.Containerd == site.Debian {
				if err := s.Machine.StopNode(); err != nil {
					t.Fatal(err)
				}
				if err := s.Machine.StartNode(t.Context(), "--trust", "chain"); err != nil {
					t.Fatal(err)
				}
				reconnect(t, s)
				clientPulls(t, s, ref)
			}
		})
	}
}

// runLazily runs a container of a pulled image in a namespace of containerd. It checks that the
// container uses a tree, and that the node fetches only some of the tree's chunks.
func runLazily(t *testing.T, s *site.Site, namespace, ref string) {
	t.Helper()
	moved := images.Received(t, s, func() {
		out := ctr(t, s, "--namespace", namespace, "run", "--rm", "--cgroup", cgroup(t, s),
			"--snapshotter", site.Lighter, ref, "c1", "python3", "-c", `print("hello")`)
		if out != "hello\n" {
			t.Errorf("python printed %q, want hello", out)
		}
	})
	if moved > 10<<20 {
		t.Errorf("running python received %d bytes, want at most 10 MiB", moved)
	}
	st := sitetest.Status(t, s)
	if len(st.Mounts) != 1 || st.Mounts[0].Device.Faults == 0 || len(st.Images) != 1 || !st.Images[0].Lazy {
		t.Errorf("the status: mounts %+v, images %+v; want one mount with reads, one lazy image", st.Mounts, st.Images)
	}
}

// cgroup returns the path of a cgroup for a container outside of the namespace of containerd that
// the machine uses. The cgroup is removed at the end of the enclosure.
func cgroup(t *testing.T, s *site.Site) string {
	return "/" + filepath.Base(filepath.Dir(s.Dir)) + "/" + t.Name()
}

// clientPulls pulls with containerd's Go client, which unpacks during the pull. So the pull is lazy
// with Debian's containerd, too. (Debian's ctr fetches all layers before it unpacks.)
func clientPulls(t *testing.T, s *site.Site, ref string) {
	t.Helper()
	client, err := containerd.New(s.Machine.ContainerdSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := namespaces.WithNamespace(t.Context(), "here")
	hosts := docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchAllHosts))
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: hosts})
	pulled, err := client.Pull(ctx, ref, containerd.WithResolver(resolver), containerd.WithPullUnpack,
		containerd.WithPullSnapshotter(site.Lighter))
	if err != nil {
		t.Fatal(err)
	}
	if unpacked, err := pulled.IsUnpacked(ctx, site.Lighter); err != nil || !unpacked {
		t.Errorf("the pulled image is unpacked in the snapshotter: %t (%v), want true", unpacked, err)
	}
	if err := client.ContentStore().Walk(ctx, func(info content.Info) error {
		if info.Size > 1<<20 {
			t.Errorf("containerd's content store has a layer: %s of %d bytes", info.Digest, info.Size)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	runLazily(t, s, "here", ref)
}
