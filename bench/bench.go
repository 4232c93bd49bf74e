// Package bench promises what all measurements stand on: a site (package site) with
// the images that they need in its registry and its hubs, a machine that is as new
// when it has to be, and cold starts, taken apart.
//
// starts/ compares snapshotters by HelloBench's method, figures/ has what else
// Lighter must reach, plot/ draws. README.md says what is measured, and how.
//
// A measurement is worth what the machine is while it runs: page cache, processors
// and disk are the host's.
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
	"lighter/wire"
)

// Bench is a site to measure on.
type Bench struct {
	Site   *site.Site
	Config Config

	has map[string]bool // what the registry and the hubs have, by hub and image
}

// New returns a bench on a running site.
func New(s *site.Site, config Config) *Bench {
	return &Bench{Site: s, Config: config, has: map[string]bool{}}
}

// Enclosed runs measure in an enclosure (see site.Enclosed). An interrupt ends
// ctx; then what was started is ended.
func Enclosed(ctx context.Context, measure func(ctx context.Context) error) error {
	code := site.Enclosed(func() int {
		err := measure(ctx)
		if ctx.Err() != nil {
			err = errors.New("interrupted") // the errors are those of what was cut off
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

// Layout returns where an image's OCI layout is.
func (c Config) Layout(image string) (string, error) {
	for _, i := range c.Images {
		if i.Name == image && i.Layout != "" {
			return i.Layout, nil
		}
	}
	work, err := site.Work()
	dir := filepath.Join(work, "images", image)
	if err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "index.json")); missing != nil {
			err = fmt.Errorf("image %s is not there: run test/setup images %s, or say its layout in the configuration: %w", image, image, missing)
		}
	}
	return dir, err
}

// Need makes sure that the registry and the site's hub have the images.
func (b *Bench) Need(ctx context.Context, images ...string) error {
	return b.NeedOn(ctx, b.Site.Hub, images...)
}

// NeedOn makes sure that the registry and a hub have the images; nil: the registry alone.
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

// NeedLayout is NeedOn for one image of which the OCI layout is dir.
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

// Compressed is the size of an image's layers in the registry, in bytes.
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

// Inspect asks the hub for all that it knows of an image.
func (b *Bench) Inspect(ctx context.Context, image string) (wire.Inspection, error) {
	return ask[wire.Inspection](ctx, b.Site.Hub, image, "inspect")
}

// ask runs a command of lighter that says something of each image of that name, of which
// there must be one.
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
		return said, fmt.Errorf("the hub has %d images %s, not one", len(all), image)
	}
	return all[0], nil
}

// Wipe makes the machine as new, with nothing in the page cache.
func (b *Bench) Wipe(ctx context.Context) error {
	if err := b.Site.Machine.Wipe(ctx); err != nil {
		return err
	}
	return site.DropCaches()
}

// AssertLazy makes sure that the node mounted what was pulled: a measurement of
// a full pull in disguise would be worse than none.
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
		return fmt.Errorf("%s was pulled and the node was never asked", image)
	}
	var errs []error
	for _, event := range status.Images {
		if !event.Lazy {
			errs = append(errs, fmt.Errorf("%s is not lazy: chain %s: %s", image, event.Chain, event.Why))
		}
	}
	return errors.Join(errs...)
}

// Say tells whoever waits what goes on.
func Say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// WriteJSON writes a value as a file of JSON.
func WriteJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Median of what is not empty.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// MedianOf is the median of a part of each.
func MedianOf[T any](all []T, part func(T) float64) float64 {
	var values []float64
	for _, one := range all {
		values = append(values, part(one))
	}
	return Median(values)
}
