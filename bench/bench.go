// Package bench has the common parts of all measurements: their configuration, the measurement of
// a cold start with a duration for each phase, medians and tables. A Bench is a site (package site)
// with images in its registry and its hubs, and a machine that can be wiped.
//
// starts/ compares snapshotters with HelloBench's method, figures/ measures what that method does
// not show, many/ measures a hub while many nodes start, hubs/ measures hubs alone, and plot/
// draws. README.md describes what is measured, and how.
//
// Measurements share page cache, processors and disk with the rest of the host. Other load changes
// them.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"lighter/cmd/command"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/test/testkit/workdir"
	"lighter/wire"
)

// Bench is a site for measurements.
type Bench struct {
	Site   *site.Site
	Config Config

	has map[string]bool // what was added: "IMAGE" to the registry, "URL IMAGE" to the hub at URL
}

// New returns a Bench for a running site.
func New(s *site.Site, config Config) *Bench {
	return &Bench{Site: s, Config: config, has: map[string]bool{}}
}

// Enclosed calls measure in an enclosure (see site.Enclosed). ctx must be one that an interrupt
// ends, as a command's context is: after an interrupt the only error is "interrupted".
func Enclosed(ctx context.Context, measure func(ctx context.Context) error) error {
	code := site.Enclosed(func() int {
		err := measure(ctx)
		if ctx.Err() != nil {
			err = errors.New("interrupted") // other errors are consequences of the interrupt
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "lighter-bench:", err)
			return 1
		}
		return 0
	})
	if code != 0 {
		return command.ErrReported
	}
	return nil
}

// Layout returns the directory of an image's OCI layout.
func (c Config) Layout(image string) (string, error) {
	for _, i := range c.Images {
		if i.Name == image && i.Layout != "" {
			return i.Layout, nil
		}
	}
	work, err := workdir.Path()
	dir := filepath.Join(work, "images", image)
	if err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "index.json")); missing != nil {
			err = fmt.Errorf("find image %s (test/setup images makes it; the configuration may set a layout): %w",
				image, missing)
		}
	}
	return dir, err
}

// Need adds images to the registry and the site's hub, unless it has added them before.
func (b *Bench) Need(ctx context.Context, images ...string) error {
	return b.NeedOn(ctx, b.Site.Hub, images...)
}

// NeedOn adds images to the registry and a hub, unless it has added them before. If h is nil, it
// adds them only to the registry.
func (b *Bench) NeedOn(ctx context.Context, h *site.Hub, images ...string) error {
	for _, image := range images {
		dir, err := b.Config.Layout(image)
		if err != nil {
			return err
		}
		if err := b.NeedLayout(ctx, h, dir, image); err != nil {
			return err
		}
	}
	return nil
}

// NeedLayout does what NeedOn does, for one image with the OCI layout dir.
func (b *Bench) NeedLayout(ctx context.Context, h *site.Hub, dir, image string) error {
	if !b.has[image] {
		if err := b.Site.Push(ctx, dir, image); err != nil {
			return err
		}
		b.has[image] = true
	}
	if h == nil || b.has[h.URL+" "+image] {
		return nil
	}
	start := time.Now()
	if err := h.Add(ctx, image); err != nil {
		return err
	}
	Say("%-10s ingested by the hub in %s", image, Seconds(time.Since(start).Seconds()))
	b.has[h.URL+" "+image] = true
	return nil
}

// Compressed returns the size of an image's layers in the registry, in bytes.
func (c Config) Compressed(image string) (int64, error) {
	dir, err := c.Layout(image)
	if err != nil {
		return 0, err
	}
	manifest, err := layout.Manifest(dir)
	var sum int64
	for _, layer := range manifest.Layers {
		sum += layer.Size
	}
	return sum, err
}

// Inspect returns the hub's description of an image.
func (b *Bench) Inspect(ctx context.Context, image string) (wire.Inspection, error) {
	return ask[wire.Inspection](ctx, b.Site.Hub, image, "inspect")
}

// ask runs a lighter command that describes all images of one name, and returns the description of
// the only one. It fails if there is none, or more than one.
func ask[T any](ctx context.Context, h *site.Hub, image, command string) (said T, err error) {
	out, err := h.Lighter(ctx, command, "--json", image+":latest")
	if err != nil {
		return said, err
	}
	var all []T
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return said, err
	}
	if len(all) != 1 {
		return said, fmt.Errorf("the hub has %d images with the name %s:latest, want one", len(all), image)
	}
	return all[0], nil
}

// Wipe wipes the machine and drops the page cache.
func (b *Bench) Wipe(ctx context.Context) error {
	if err := b.Site.Machine.Wipe(ctx); err != nil {
		return err
	}
	return site.DropCaches()
}

// AssertLazy returns an error unless the node's status lists at least one image, and all listed
// images are lazy. After a pull on a wiped machine, it ensures that the pull was not a full one.
// image is the name of the pulled image, for the errors.
func (b *Bench) AssertLazy(ctx context.Context, image string) error {
	var status struct {
		Images []struct {
			Chain, Why string
			Lazy       bool
		}
	}
	if err := b.Site.Machine.NodeStatus(ctx, &status); err != nil {
		return err
	}
	if len(status.Images) == 0 {
		return fmt.Errorf("image %s was pulled, but the node lists no image: containerd did not ask the node", image)
	}
	var errs []error
	for _, event := range status.Images {
		if !event.Lazy {
			errs = append(errs, fmt.Errorf("image %s is not lazy: chain %s: %s", image, event.Chain, event.Why))
		}
	}
	return errors.Join(errs...)
}

// Say prints a progress message to the standard error.
func Say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// WriteJSON writes a value to a JSON file.
func WriteJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Median returns the median of values, which must not be empty.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// MedianOf returns the median of part of each element.
func MedianOf[T any](all []T, part func(T) float64) float64 {
	var values []float64
	for _, one := range all {
		values = append(values, part(one))
	}
	return Median(values)
}
