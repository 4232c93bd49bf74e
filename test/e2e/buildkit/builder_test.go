//go:build runtimes

package buildkit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/node/front/containerd"
	"lighter/test/testkit/site"
)

// builder is a buildkitd of the machine.
type builder struct {
	site   *site.Site
	dir    string // of its socket, configuration and state
	daemon *site.Daemon
}

// newBuilder starts a buildkitd with the lines of its OCI worker.
func newBuilder(ctx context.Context, s *site.Site, dir, worker string) (*builder, error) {
	b := &builder{site: s, dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	text := fmt.Sprintf(`root = %q
[grpc]
  address = [ %q ]
[worker.containerd]
  enabled = false
[worker.oci]
  enabled = true
  gc = false
  networkMode = "host"
%s
[registry.%q]
  http = true
`, filepath.Join(dir, "root"), b.address(), worker, registry())
	if err := os.WriteFile(filepath.Join(dir, "buildkitd.toml"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	return b, b.start(ctx)
}

// lazy returns the lines of a worker with the node's snapshotter.
func lazy(s *site.Site) string {
	return fmt.Sprintf("  snapshotter = %q\n  proxySnapshotterPath = %q\n", containerd.BuildKitName,
		containerd.BuildKitSocket(s.Machine.NodeRoot()))
}

// overlayfs are the lines of a worker that downloads and unpacks images.
const overlayfs = "  snapshotter = \"overlayfs\"\n"

func (b *builder) socket() string  { return filepath.Join(b.dir, "sock") }
func (b *builder) address() string { return "unix://" + b.socket() }

func (b *builder) start(ctx context.Context) (err error) {
	b.daemon, err = b.site.Machine.StartDaemon(ctx, "buildkitd", b.socket(), tool("buildkitd"),
		"--config", filepath.Join(b.dir, "buildkitd.toml"))
	return err
}

func (b *builder) restart(t *testing.T) {
	t.Helper()
	if err := b.daemon.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := b.start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (b *builder) stop() error { return b.daemon.Stop() }

// ctl runs buildctl and returns what it printed.
func (b *builder) ctl(ctx context.Context, args ...string) (string, error) {
	return b.site.Machine.Command(ctx, append([]string{tool("buildctl"), "--addr", b.address()}, args...)...)
}

// tryBuild builds a Dockerfile. args are more arguments of `buildctl build`.
func (b *builder) tryBuild(t *testing.T, dockerfile string, args ...string) error {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("from the context\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := b.ctl(t.Context(), append([]string{"build", "--progress", "plain", "--frontend", "dockerfile.v0",
		"--local", "context=" + dir, "--local", "dockerfile=" + dir}, args...)...)
	return err
}

func (b *builder) build(t *testing.T, dockerfile string, args ...string) {
	t.Helper()
	if err := b.tryBuild(t, dockerfile, args...); err != nil {
		t.Fatalf("build\n%s\n%v", dockerfile, err)
	}
}

// output builds a Dockerfile whose last stage has a file "out", and returns this file's contents.
func (b *builder) output(t *testing.T, dockerfile string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	b.build(t, dockerfile, append([]string{"--output", "type=local,dest=" + dir}, args...)...)
	out, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// registry returns HOST:PORT of the site's registry.
func registry() string {
	host, _, _ := strings.Cut(site.Reference("x"), "/")
	if _, _, err := net.SplitHostPort(host); err != nil {
		panic(err)
	}
	return host
}

func tool(name string) string {
	work, err := site.Work()
	if err != nil {
		panic(err) // site.Start has succeeded
	}
	return filepath.Join(work, site.Ours, name)
}

// image returns the path of an image's layout, which test/setup has made.
func image(name string) string {
	work, err := site.Work()
	if err != nil {
		panic(err) // site.Start has succeeded
	}
	return filepath.Join(work, "images", name)
}

// startSite starts a site whose hub has the images base and python.
func startSite(ctx context.Context, options site.Options) (*site.Site, error) {
	lighter, err := site.Binary()
	if err != nil {
		return nil, err
	}
	options.Lighter = lighter
	s, err := site.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"base", "python"} {
		if err := errors.Join(s.Push(ctx, image(name), name), s.Hub.Add(ctx, name)); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}
