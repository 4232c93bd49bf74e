// Package buildkitd runs a BuildKit on the machine of a site, whose worker is lazy or unpacks
// images. test/setup buildkit builds its programs.
package buildkitd

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lighter/node/front/containerd"
	"lighter/test/testkit/site"
	"lighter/test/testkit/workdir"
)

// Builder is a buildkitd of the machine.
type Builder struct {
	Site *site.Site
	Dir  string // of its socket, configuration and state

	daemon *site.Daemon
}

// oci begins the lines of an OCI worker.
const oci = `[worker.containerd]
  enabled = false
[worker.oci]
  enabled = true
  gc = false
  networkMode = "host"
`

// Overlayfs are the lines of a worker that downloads and unpacks images.
const Overlayfs = oci + "  snapshotter = \"overlayfs\"\n"

// Lazy returns the lines of a worker with the node's snapshotter.
func Lazy(s *site.Site) string {
	return oci + fmt.Sprintf("  snapshotter = %q\n  proxySnapshotterPath = %q\n", containerd.BuildKitName,
		containerd.BuildKitSocket(s.Machine.NodeRoot()))
}

// Start starts a buildkitd with the lines of its workers. NAME is that of its directory, below
// the site's, and of its log.
func Start(ctx context.Context, s *site.Site, name, worker string) (*Builder, error) {
	b := &Builder{Site: s, Dir: filepath.Join(s.Dir, name)}
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return nil, err
	}
	registry, _, _ := strings.Cut(site.Reference("x"), "/")
	text := fmt.Sprintf(`root = %q
[grpc]
  address = [ %q ]
%s
[registry.%q]
  http = true
`, filepath.Join(b.Dir, "root"), b.address(), worker, registry)
	if err := os.WriteFile(b.Config(), []byte(text), 0o600); err != nil {
		return nil, err
	}
	return b, b.StartAgain(ctx)
}

// Config returns the path of buildkitd's configuration.
func (b *Builder) Config() string { return filepath.Join(b.Dir, "buildkitd.toml") }

// Socket returns the path of buildkitd's socket.
func (b *Builder) Socket() string { return filepath.Join(b.Dir, "sock") }

func (b *Builder) address() string { return "unix://" + b.Socket() }

// StartAgain starts buildkitd after Stop.
func (b *Builder) StartAgain(ctx context.Context) error {
	program, err := tool("buildkitd")
	if err != nil {
		return err
	}
	b.daemon, err = b.Site.Machine.StartDaemon(ctx, filepath.Base(b.Dir), b.Socket(), program, "--config", b.Config())
	return err
}

// Stop stops buildkitd, if it was started.
func (b *Builder) Stop() error {
	if b == nil || b.daemon == nil {
		return nil
	}
	return b.daemon.Stop()
}

// Ctl runs buildctl and returns what it printed.
func (b *Builder) Ctl(ctx context.Context, args ...string) (string, error) {
	program, err := tool("buildctl")
	if err != nil {
		return "", err
	}
	return b.Site.Machine.Command(ctx, append([]string{program, "--addr", b.address()}, args...)...)
}

// Build builds the Dockerfile in a directory, which is the build's context. args are more arguments
// of `buildctl build`.
func (b *Builder) Build(ctx context.Context, dir string, args ...string) error {
	_, err := b.Ctl(ctx, append([]string{"build", "--progress", "plain", "--frontend", "dockerfile.v0",
		"--local", "context=" + dir, "--local", "dockerfile=" + dir}, args...)...)
	return err
}

// Built returns an error, which names the remedy, if the programs are not built.
func Built() error {
	_, buildkitd := tool("buildkitd")
	_, buildctl := tool("buildctl")
	return cmp.Or(buildkitd, buildctl)
}

// tool returns the path of a program of BuildKit.
func tool(name string) (string, error) {
	work, err := workdir.Path()
	if err != nil {
		return "", err
	}
	path := filepath.Join(work, site.Ours, name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find %s (test/setup buildkit builds it): %w", name, err)
	}
	return path, nil
}
