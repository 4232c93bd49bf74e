package figures

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"lighter/bench"
	"lighter/test/testkit/buildkitd"
	"lighter/test/testkit/dockerd"
	"lighter/test/testkit/site"
)

// launchers returns the runtimes that are measured, ctr first.
func (r *run) launchers(ctx context.Context) ([]launcher, error) {
	if err := cmp.Or(dockerd.Built(), buildkitd.Built()); err != nil {
		return nil, err
	}
	pods, err := r.newPods(ctx)
	return []launcher{ctr{r}, pods, &docker{run: r}, podman{r}, &buildkit{run: r}, directory{r}, lighterRun{r}}, err
}

// onHub returns the name that a workload's image has on the hub.
func onHub(w bench.Workload) string { return w.Image + ":latest" }

// ctr pulls an image, and runs a container.
type ctr struct{ *run }

func (ctr) name() string { return "ctr" }

func (c ctr) prepare(ctx context.Context, _ string) error { return c.Site.Machine.Wipe(ctx) }

func (c ctr) start(ctx context.Context, mode string, w bench.Workload) error {
	m, ref := c.Site.Machine, site.Reference(w.Image)
	if _, err := m.Pull(ctx, mode, ref); err != nil {
		return err
	}
	return printed(m.Ctr(ctx, append([]string{"run", "--rm", "--snapshotter", mode, ref, "print"}, w.Argv...)...))
}

func (ctr) end(context.Context, bool) error { return nil }

// directory runs bubblewrap in the directory of all images. A full pull unpacks the image with
// Skopeo and umoci.
type directory struct{ *run }

func (directory) name() string { return "directory and bubblewrap" }

func (d directory) images() string  { return filepath.Join(d.Site.Dir, "images") }
func (d directory) scratch() string { return filepath.Join(d.Site.Dir, "scratch") }

func (d directory) prepare(ctx context.Context, _ string) error {
	d.Site.SetNodeArgs("--directory", d.images())
	return errors.Join(d.Site.Machine.Wipe(ctx), os.MkdirAll(d.scratch(), 0o755))
}

func (d directory) start(ctx context.Context, mode string, w bench.Workload) error {
	m, root := d.Site.Machine, filepath.Join(d.images(), onHub(w))
	if mode == site.Overlayfs {
		image, bundle := filepath.Join(d.scratch(), "layout:1"), filepath.Join(d.scratch(), "bundle")
		for _, argv := range [][]string{
			{"skopeo", "copy", "--src-tls-verify=false", "docker://" + site.Reference(w.Image), "oci:" + image},
			{"umoci", "unpack", "--image", image, bundle},
		} {
			if _, err := m.Command(ctx, argv...); err != nil {
				return err
			}
		}
		root = filepath.Join(bundle, "rootfs")
	}
	return printed(m.Command(ctx, append([]string{"bwrap", "--ro-bind", root, "/", "--dev", "/dev", "--proc", "/proc",
		"--tmpfs", "/tmp"}, w.Argv...)...))
}

func (d directory) end(context.Context, bool) error { return os.RemoveAll(d.scratch()) }

// lighterRun runs `lighter run`.
type lighterRun struct{ *run }

func (lighterRun) name() string { return "lighter run" }

func (l lighterRun) prepare(ctx context.Context, _ string) error { return l.Site.Machine.Wipe(ctx) }

func (l lighterRun) start(ctx context.Context, mode string, w bench.Workload) error {
	pull, image := "never", onHub(w)
	if mode == site.Overlayfs {
		pull, image = "always", site.Reference(w.Image)
	}
	argv := []string{"--pull", pull, "--source-plain-http", "--state", l.state(), image}
	return printed(l.Site.Machine.Lighter(ctx, "run", append(argv, w.Argv...)...))
}

func (l lighterRun) end(context.Context, bool) error { return os.RemoveAll(l.state()) }

func (l lighterRun) state() string { return filepath.Join(l.Site.Dir, "containers") }
