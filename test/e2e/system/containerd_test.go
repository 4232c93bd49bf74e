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

	"lighter/test/testkit/site"
)

// shipped returns the text of a configuration that we ship.
func shipped(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../../deploy/containerd", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Debian's containerd and ours accept the configurations that we ship for 1.x and for 2.x, and know
// all of their keys.
func TestShippedConfigurations(t *testing.T) {
	work, err := site.Work()
	if err != nil {
		t.Fatal(err)
	}
	for name, whose := range map[string]string{"config-1.6.toml": site.Debian, "config-1.7.toml": site.Debian,
		"config-2.0.toml": site.Ours, "config-2.1.toml": site.Ours} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(shipped(t, name)), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(filepath.Join(work, whose, "containerd"), "--config", path, "config",
			"dump").CombinedOutput()
		text := strings.ReplaceAll(string(out), "'", `"`)
		for _, want := range []string{"[proxy_plugins.lighter]", `address = "/run/lighter/lighter.sock"`,
			`snapshotter = "lighter"`} {
			if err != nil || !strings.Contains(text, want) {
				t.Errorf("%s: %v: %q is not in\n%s", name, err, want, out)
			}
		}
		if strings.Contains(text, "unknown key") {
			t.Errorf("%s has keys that containerd does not know:\n%s", name, out)
		}
	}
}

// The kubelet's pulls are lazy with each version of containerd and each of its pull modes: no layer
// is downloaded, and a container of the image uses a tree.
func TestCRI(t *testing.T) {
	modern := shipped(t, "config-2.1.toml")
	for name, o := range map[string]site.Options{
		"Debian's":         {Containerd: site.Debian, Config: shipped(t, "config-1.6.toml")},
		"transfer service": {Config: modern},
		"local pull": {Config: strings.Replace(modern, "use_local_image_pull = false",
			"use_local_image_pull = true\n    disable_snapshot_annotations = false", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, o, "+python")
			ref := site.Reference("python")
			moved := received(t, s, func() {
				if out, err := s.Machine.Command(t.Context(), s.Machine.CRI("pull", ref)...); err != nil ||
					!strings.HasPrefix(out, "sha256:") {
					t.Fatalf("%q, %v", out, err)
				}
			})
			if moved > 3<<20 {
				t.Errorf("the pull received %d bytes", moved)
			}
			runLazily(t, s, "k8s.io", ref)
			if o.Containerd != site.Debian { // with Debian's version, this test's client would add the SELinux label
				labelled(t, s, "k8s.io", ref)
			}
			root := s.Machine.NodeRoot()
			if o.Containerd == site.Debian {
				// see config-1.6.toml
				root = filepath.Join(filepath.Dir(root), "containerd/io.containerd.snapshotter.v1.lighter")
			}
			if out, err := s.Machine.Command(t.Context(), s.Machine.CRI("fs")...); err != nil || out != root+"\n" {
				t.Errorf("file system that the kubelet watches: got %q, want %s: %v", out, root, err)
			}
			if out, err := s.Machine.Command(t.Context(), s.Machine.CRI("rm", ref)...); err != nil {
				t.Errorf("%q, %v", out, err)
			}
			// If a Go client pulls (clientPulls), Debian's containerd sets no labels that name the
			// image: the node has to trust chains.
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
// container uses a tree, and fetches only some of its chunks.
func runLazily(t *testing.T, s *site.Site, namespace, ref string) {
	t.Helper()
	moved := received(t, s, func() {
		out := ctr(t, s, "--namespace", namespace, "run", "--rm", "--cgroup", cgroup(t, s),
			"--snapshotter", site.Lighter, ref, "c1", "python3", "-c", `print("hello")`)
		if out != "hello\n" {
			t.Errorf("python printed %q", out)
		}
	})
	if moved > 10<<20 {
		t.Errorf("running python received %d bytes", moved)
	}
	st := status(t, s)
	if len(st.Mounts) != 1 || st.Mounts[0].Device.Faults == 0 || len(st.Images) != 1 || !st.Images[0].Lazy {
		t.Errorf("the status: %+v, %+v", st.Mounts, st.Images)
	}
}

// cgroup returns the cgroup for a container that is not in Machine.Namespace, the namespace of
// containerd that the machine uses. The end of the enclosure removes it.
func cgroup(t *testing.T, s *site.Site) string {
	return "/" + filepath.Base(filepath.Dir(s.Dir)) + "/" + t.Name()
}

// clientPulls pulls with containerd's Go client, which unpacks during the pull. Such a pull is also
// lazy with Debian's containerd, whose ctr fetches all layers first.
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
	if lazy, err := pulled.IsUnpacked(ctx, site.Lighter); err != nil || !lazy {
		t.Errorf("unpacked: %v, %v", lazy, err)
	}
	if err := client.ContentStore().Walk(ctx, func(info content.Info) error {
		if info.Size > 1<<20 {
			t.Errorf("containerd holds a layer: %s of %d bytes", info.Digest, info.Size)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	runLazily(t, s, "here", ref)
}
