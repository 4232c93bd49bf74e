package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
)

// The link's speed, in bytes a second.
const linkSpeed = 1e9 / 8

// modes are the two ways that everything is done.
var modes = []string{site.Overlayfs, site.Lighter}

// bench is one run of the program.
type bench struct {
	options
	site      *site.Site
	workloads []workload
	ready     map[string]bool // images that the registry and the hub have
	rows      []benchRow
	verdicts  []verdict
}

// workload is one command in one image, as test/images/workloads.json has it.
type workload struct {
	Image    string   `json:"image"`
	Workload string   `json:"workload"`
	Argv     []string `json:"argv"`
}

func (w workload) String() string { return w.Image + "/" + w.Workload }

func readWorkloads() ([]workload, error) {
	module, err := site.Module()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(module, "test/images/workloads.json"))
	if err != nil {
		return nil, err
	}
	var all []workload
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("test/images/workloads.json: %w", err)
	}
	return all, nil
}

// images are those of the workloads, in their order.
func (b *bench) images() []string {
	var names []string
	seen := map[string]bool{}
	for _, w := range b.workloads {
		if !seen[w.Image] {
			seen[w.Image] = true
			names = append(names, w.Image)
		}
	}
	return names
}

// layoutOf is where test/setup put an image.
func layoutOf(image string) (string, error) {
	work, err := site.Work()
	return filepath.Join(work, "images", image), err
}

// need makes sure that the registry and the hub have the images.
func (b *bench) need(ctx context.Context, images ...string) error {
	for _, image := range images {
		dir, err := layoutOf(image)
		if err != nil {
			return err
		}
		if err := b.needLayout(ctx, dir, image); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) needLayout(ctx context.Context, dir, image string) error {
	if b.ready[image] {
		return nil
	}
	if err := b.site.Push(ctx, dir, image); err != nil {
		return err
	}
	start := time.Now()
	if err := b.site.Hub.Add(ctx, image); err != nil {
		return err
	}
	say("%-10s taken in by the hub in %s", image, seconds(time.Since(start).Seconds()))
	if b.ready == nil {
		b.ready = map[string]bool{}
	}
	b.ready[image] = true
	return nil
}

// compressedSize is the size of an image's layers in the registry, in bytes.
func compressedSize(image string) (int64, error) {
	dir, err := layoutOf(image)
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

// wipe makes the machine as new, with nothing in the page cache.
func (b *bench) wipe(ctx context.Context) error {
	if err := b.site.Machine.Wipe(ctx); err != nil {
		return err
	}
	return site.DropCaches()
}

// assertLazy makes sure that the node mounted what was pulled: a measurement of
// a full pull in disguise would be worse than none.
func (b *bench) assertLazy(ctx context.Context, image string) error {
	var status struct {
		Images []struct {
			Chain, Why string
			Lazy       bool
		}
	}
	if err := b.site.Machine.NodeStatus(ctx, &status); err != nil {
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

// say tells whoever waits what goes on.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
