package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"lighter/bench"
	"lighter/test/testkit/fswalk"
	"lighter/test/testkit/site"
)

// shownDifferences bounds the printed differences of one image.
const shownDifferences = 20

// same compares the root directories of containers of each image in both modes: all entries with
// their attributes and contents. It also checks the image's metadata image with fsck.erofs.
func (r *run) same(ctx context.Context) error {
	for _, image := range r.images() {
		if err := r.Need(ctx, image); err != nil {
			return err
		}
		if err := r.Wipe(ctx); err != nil {
			return err
		}
		if err := r.sameImage(ctx, image); err != nil {
			return fmt.Errorf("image %s: %w", image, err)
		}
	}
	return nil
}

func (r *run) sameImage(ctx context.Context, image string) error {
	began := time.Now().Unix()
	listings := map[string]fswalk.Listing{}
	for _, mode := range modes {
		if _, err := r.Site.Machine.Pull(ctx, mode, site.Reference(image)); err != nil {
			return err
		}
		var err error
		if listings[mode], err = r.listRoot(ctx, mode, image); err != nil {
			return err
		}
		bench.Say("%-10s %-10s %d entries", image, mode, len(listings[mode]))
	}
	if err := r.AssertLazy(ctx, image); err != nil {
		return err
	}
	// The root, and directories without an entry in the layer that changes them, get the time of
	// unpacking from containerd.
	imageSetsTime := func(_ string, a, _ fswalk.Entry) bool { return !a.IsDir() || a.Sec < began }
	differences := fswalk.Diff(listings[site.Overlayfs], listings[site.Lighter],
		fswalk.Options{ComparesTime: imageSetsTime})
	for _, d := range differences[:min(len(differences), shownDifferences)] {
		bench.Say("%-10s %s", image, d)
	}
	refused, err := r.fsck(ctx)
	if err != nil {
		return err
	}
	r.judgeSame(image+" : entries", listings, len(differences), "differences")
	r.judgeSame(image+" : fsck.erofs", nil, refused, "refused")
	return nil
}

// listRoot starts a container and lists the lower layers of its root.
func (r *run) listRoot(ctx context.Context, mode, image string) (listing fswalk.Listing, err error) {
	c, err := r.Site.Machine.StartContainer(ctx, mode, site.Reference(image), "sleep", "infinity")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Remove(ctx)) }()
	dir, err := os.MkdirTemp(r.Site.Dir, "view")
	if err != nil {
		return nil, err
	}
	root, unmount, err := c.View(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		gone := unmount()
		if gone == nil {
			gone = os.RemoveAll(dir)
		}
		err = errors.Join(err, gone)
	}()
	return fswalk.Walk(root)
}

// fsck counts the metadata images on the machine that fsck.erofs refuses.
func (r *run) fsck(ctx context.Context) (refused int, err error) {
	images, err := filepath.Glob(filepath.Join(r.Site.Machine.NodeRoot(), "trees/*/metadata"))
	if err == nil && len(images) == 0 {
		err = errors.New("the node has no metadata image")
	}
	for _, image := range images {
		// fsck.erofs requires a device, but does not read it.
		out, err := exec.CommandContext(ctx, "fsck.erofs", "--device=/dev/zero", image).CombinedOutput()
		if err != nil && !errors.As(err, new(*exec.ExitError)) {
			return 0, fmt.Errorf("run fsck.erofs: %w", err)
		}
		if err != nil {
			bench.Say("fsck.erofs: %v: %s", err, out)
			refused++
		}
	}
	return refused, err
}

// judgeSame adds a verdict on a number that must be 0.
func (r *run) judgeSame(what string, listings map[string]fswalk.Listing, value int, unit string) {
	v := verdict{Figure: "same", What: what, Unit: unit}
	if listings != nil {
		v.Overlayfs, v.Lighter = fmt.Sprint(len(listings[site.Overlayfs])), fmt.Sprint(len(listings[site.Lighter]))
	}
	v.Value, v.Target, v.Result = atMost(float64(value), 0)
	r.verdicts = append(r.verdicts, v)
}
