package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lighter/bench"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
)

const (
	nodeMemory = 150e6 // target for the node's peak resident memory, in bytes
	sharedBase = 10    // number of images that share a base
)

// memory reads all files of ml once, and reports the memory of the node.
func (r *run) memory(ctx context.Context) (err error) {
	if err := r.Need(ctx, largestImage); err != nil {
		return err
	}
	var most, now []float64
	for range r.Rounds {
		m, err := r.memoryRound(ctx)
		if err != nil {
			return err
		}
		most, now = append(most, float64(m.Most)), append(now, float64(m.Now))
		bench.Say("resident memory of the node: %s, peak %s", bench.Size(m.Now), bench.Size(m.Most))
	}
	r.rows = append(r.rows, benchRow{row: row{Workload: "node memory", Mode: site.Lighter}, Image: largestImage,
		Rounds: r.Rounds,
		Values: map[string]float64{"resident_bytes": bench.Median(now), "most_resident_bytes": bench.Median(most)}})
	v := verdict{Figure: "memory", What: "node, ml mounted and read once",
		Lighter: bench.Size(int64(bench.Median(most))), Unit: "MB",
		Note: "peak resident memory; afterwards " + bench.Size(int64(bench.Median(now)))}
	v.Value, v.Target, v.Result = atMost(bench.Median(most)/1e6, nodeMemory/1e6)
	r.verdicts = append(r.verdicts, v)
	return nil
}

func (r *run) memoryRound(ctx context.Context) (m site.Memory, err error) {
	c, err := r.freshContainer(ctx, largestImage)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, c.Remove(ctx)) }()
	var content reader
	if _, err := content.readAll(c.Root); err != nil {
		return m, err
	}
	return r.Site.Machine.NodeMemory()
}

// pageCache starts a container of each of ten images that differ in one file, and measures the
// growth of the page cache.
func (r *run) pageCache(ctx context.Context) error {
	images, err := r.derived(ctx, "python", sharedBase)
	if err != nil {
		return err
	}
	grown := map[string][]float64{}
	err = r.bothModes(func(round int, mode string) error {
		one, all, err := r.pageCacheRound(ctx, mode, images)
		bench.Say("%-10s %s in the page cache with one container, %s with %d", mode, bench.Size(one), bench.Size(all),
			len(images))
		grown[mode], grown["one "+mode] = append(grown[mode], float64(all)), append(grown["one "+mode], float64(one))
		return err
	})
	if err != nil {
		return err
	}
	for _, mode := range modes {
		r.rows = append(r.rows, benchRow{row: row{Workload: "page cache of ten images on one base", Mode: mode},
			Image: "python", Rounds: r.Rounds,
			Values: map[string]float64{"one_bytes": bench.Median(grown["one "+mode]),
				"all_bytes": bench.Median(grown[mode])}})
	}
	over, lazy := bench.Median(grown[site.Overlayfs]), bench.Median(grown[site.Lighter])
	r.verdicts = append(r.verdicts, verdict{Figure: "pagecache", What: "python3 in ten images on one base",
		Overlayfs: bench.Size(int64(over)),
		Lighter:   bench.Size(int64(lazy)), Value: lazy / over, Unit: "ratio", Result: noTarget,
		Note: fmt.Sprintf("in one: %s, %s", bench.Size(int64(bench.Median(grown["one "+site.Overlayfs]))),
			bench.Size(int64(bench.Median(grown["one "+site.Lighter]))))})
	return nil
}

// pageCacheRound returns the growth of the page cache by the first container, and by all of them,
// with all data on the node's disk.
func (r *run) pageCacheRound(ctx context.Context, mode string, images []string) (one, all int64, err error) {
	m := r.Site.Machine
	if err := r.Wipe(ctx); err != nil {
		return 0, 0, err
	}
	stay := []string{"python3", "-c", `print("hello"); import time; time.sleep(1e6)`}
	for _, image := range images {
		if _, err := m.Pull(ctx, mode, site.Reference(image)); err != nil {
			return 0, 0, err
		}
		// This run fetches the data that the measured container reads.
		if _, err := m.Run(ctx, mode, site.Reference(image), "python3", "-c", `print("hello")`); err != nil {
			return 0, 0, err
		}
	}
	if err := site.DropCaches(); err != nil {
		return 0, 0, err
	}
	before, err := site.PageCache()
	if err != nil {
		return 0, 0, err
	}
	for i, image := range images {
		c, err := m.StartContainer(ctx, mode, site.Reference(image), stay...)
		if err != nil {
			return 0, 0, err
		}
		defer func() { err = errors.Join(err, c.Remove(ctx)) }()
		if err := asleep(ctx, c); err != nil {
			return 0, 0, err
		}
		now, err := site.PageCache()
		if err != nil {
			return 0, 0, err
		}
		if all = now - before; i == 0 {
			one = all
		}
	}
	return one, all, nil
}

// asleep waits until the container's process is idle.
func asleep(ctx context.Context, c *site.Container) error {
	used := ""
	for range 100 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.PID))
		if err != nil {
			return fmt.Errorf("container %s has ended: %w", c.ID, err)
		}
		fields := strings.Fields(string(text))
		if now := fields[13] + " " + fields[14]; now == used && fields[2] == "S" {
			return nil
		} else {
			used = now
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return fmt.Errorf("container %s does not become idle", c.ID)
}

// derived makes n images by adding a layer with one file to another image. Each has its own chain.
func (r *run) derived(ctx context.Context, base string, n int) ([]string, error) {
	from, err := r.Config.Layout(base)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range n {
		name := fmt.Sprintf("%s-%d", base, i)
		to := filepath.Join(r.Site.Dir, "layouts", name)
		err := layout.Extend(from, to, func(l *layout.Layer) error {
			return l.File("app/number", []byte(fmt.Sprintln(i)))
		})
		if err != nil {
			return nil, err
		}
		if err := r.NeedLayout(ctx, r.Site.Hub, to, name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}
