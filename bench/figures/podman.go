package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lighter/bench"
	"lighter/sleep"
	"lighter/test/testkit/site"
)

const (
	// storeLimit bounds the time until the node lists an image in its store, storeInterval is the
	// time between two looks.
	storeLimit    = 5 * time.Minute
	storeInterval = 100 * time.Millisecond
)

// podman runs `podman run` of an image in the node's image store. Without Lighter, Podman pulls the
// image into its own storage.
type podman struct{ *run }

func (podman) name() string { return "Podman" }

func (p podman) prepare(ctx context.Context, mode string) error {
	if mode == site.Overlayfs {
		return p.Site.Machine.Wipe(ctx)
	}
	p.Site.SetNodeArgs("--image-store", p.store())
	if err := p.Site.Machine.Wipe(ctx); err != nil {
		return err
	}
	return p.awaitImages(ctx, "localhost/sci:", 1)
}

// awaitImages waits until the store has a number of images whose names begin with a prefix.
func (p podman) awaitImages(ctx context.Context, prefix string, number int) error {
	const list = "overlay-images/images.json"
	for began := time.Now(); ; {
		text, err := os.ReadFile(filepath.Join(p.store(), list))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		listed := strings.Count(string(text), `"`+prefix)
		if listed >= number {
			return nil
		}
		if time.Since(began) > storeLimit {
			return fmt.Errorf("the store has %d images %s within %s, want %d", listed, prefix, storeLimit, number)
		}
		if !sleep.For(ctx, storeInterval) {
			return context.Cause(ctx)
		}
	}
}

func (p podman) start(ctx context.Context, mode string, w bench.Workload) error {
	argv := []string{"run", "--rm", "--net", "host", "--tls-verify=false",
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"} // runc may not raise limits here
	ref := "localhost/" + onHub(w)
	if mode == site.Overlayfs {
		ref = site.Reference(w.Image)
	}
	return printed(p.Site.Machine.Command(ctx, p.argv(mode, append(append(argv, ref), w.Argv...)...)...))
}

// argv returns a command line of podman with a storage below the site's directory, and with the
// node's store in the mode site.Lighter.
func (p podman) argv(mode string, args ...string) []string {
	argv := []string{"podman", "--cgroup-manager", "cgroupfs", "--runtime", "runc", "--events-backend", "none",
		"--root", p.path("root"), "--runroot", p.path("run"), "--tmpdir", p.path("tmp"), "--storage-driver", "overlay"}
	if mode == site.Lighter {
		argv = append(argv, "--storage-opt", "additionalimagestore="+p.store())
	}
	return append(argv, args...)
}

func (p podman) end(context.Context, bool) error {
	// Podman leaves its storage mounted on itself.
	err := unix.Unmount(p.path("root/overlay"), unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		err = nil // podman has not run
	}
	return errors.Join(err, os.RemoveAll(p.path("")))
}

func (p podman) path(name string) string { return filepath.Join(p.Site.Dir, "podman", name) }

func (p podman) store() string { return filepath.Join(p.Site.Dir, "store") }
