package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// firstRead measures a read of the largest file of ml without cached chunks.
func (r *run) firstRead(ctx context.Context) error {
	if err := r.Need(ctx, largestImage); err != nil {
		return err
	}
	var all []firstRead
	var times []float64
	for range r.Rounds {
		f, err := r.readFirst(ctx)
		if err != nil {
			return err
		}
		bench.Say("%s in %s: %s over the link, %.0f MB/s; processors %.0f %% busy, %.0f %% without other processes",
			bench.Size(f.size), bench.Seconds(f.took), bench.Size(f.bytes),
			float64(f.bytes)/f.took/1e6, 100*f.busy, 100*f.busySite)
		all, times = append(all, f), append(times, f.took)
	}
	row := timesRow(largestImage, "first read of the largest file", site.Lighter, times)
	speed := bench.MedianOf(all, func(f firstRead) float64 { return float64(f.bytes) / f.took })
	busy := bench.MedianOf(all, func(f firstRead) float64 { return f.busySite })
	row.Bytes = int64(bench.MedianOf(all, func(f firstRead) float64 { return float64(f.bytes) }))
	row.Values = map[string]float64{"link_MBps": speed / 1e6, "file_MBps": float64(all[0].size) / row.RunS / 1e6,
		"processors_busy": busy}
	r.rows = append(r.rows, row)
	v := verdict{Figure: "first", What: fmt.Sprintf("first read of %s : link", bench.Size(all[0].size)),
		Lighter: fmt.Sprintf("%.0f MB/s", speed/1e6), Unit: "ratio",
		Value: speed / linkSpeed, Target: linkShare, AtLeast: true,
		Note: fmt.Sprintf("passes also with busy processors: they were %.0f %% busy", 100*busy)}
	v.Result = passed(v.Value >= linkShare || busy >= busyEnough)
	r.verdicts = append(r.verdicts, v)
	return nil
}

// firstRead holds the figures of one first read.
type firstRead struct {
	took     float64 // seconds
	size     int64   // size of the file
	bytes    int64   // received over the link
	busy     float64 // share of all processors' time
	busySite float64 // busy share of the time that processes outside of the site left
}

func (r *run) readFirst(ctx context.Context) (f firstRead, err error) {
	m := r.Site.Machine
	c, files, err := r.freshLargest(ctx)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, c.Remove(ctx)) }()
	before, err := m.Bytes()
	if err != nil {
		return f, err
	}
	used, err := readProcessors()
	if err != nil {
		return f, err
	}
	var content reader
	f.took, err = timed(func() (err error) { f.size, err = content.read(c.Root, files.largest); return err })
	if err != nil {
		return f, err
	}
	after, err := m.Bytes()
	if err != nil {
		return f, err
	}
	now, err := readProcessors()
	f.bytes = after - before
	f.busy, f.busySite = now.busySince(used)
	return f, err
}

// freshLargest starts a lazy container of the image with the largest files on a wiped machine. It
// returns the container, which the caller removes, and the files to read.
func (r *run) freshLargest(ctx context.Context) (*site.Container, chosen, error) {
	c, err := r.freshContainer(ctx, largestImage)
	if err != nil {
		return nil, chosen{}, err
	}
	files, err := choose(c.Root)
	if err != nil {
		return nil, files, errors.Join(err, c.Remove(ctx))
	}
	return c, files, nil
}

// freshContainer starts a lazy container of image on a wiped machine.
func (r *run) freshContainer(ctx context.Context, image string) (*site.Container, error) {
	if err := r.Wipe(ctx); err != nil {
		return nil, err
	}
	if _, err := r.Site.Machine.Pull(ctx, site.Lighter, site.Reference(image)); err != nil {
		return nil, err
	}
	c, err := r.Site.Machine.StartContainer(ctx, site.Lighter, site.Reference(image), "sleep", "infinity")
	if err != nil {
		return nil, err
	}
	// Wait for the read-ahead of the start, which does not belong to the measurement.
	if err := r.quiet(ctx); err != nil {
		return nil, errors.Join(err, c.Remove(ctx))
	}
	return c, nil
}

// quiet waits until the machine receives no more bytes over the link.
func (r *run) quiet(ctx context.Context) error {
	const limit = 30 * time.Second
	last := int64(-1)
	for start := time.Now(); time.Since(start) < limit; {
		now, err := r.Site.Machine.Bytes()
		if err != nil || now == last {
			return err
		}
		last = now
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
	return fmt.Errorf("the machine still receives bytes after %s without reads", limit)
}

// processors holds processor times in ticks: idle time and total time since boot, and the time of
// the site's processes.
type processors struct{ idle, all, site float64 }

func readProcessors() (p processors, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return p, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	// user nice system idle iowait irq softirq steal; user includes guest time.
	for i, field := range strings.Fields(line)[1:9] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return p, fmt.Errorf("/proc/stat: %w", err)
		}
		p.all += n
		if i == 3 || i == 4 {
			p.idle += n
		}
	}
	files, err := filepath.Glob("/proc/[0-9]*/stat") // only processes of the enclosure
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process has just ended
		}
		_, after, _ := strings.Cut(string(text), ") ") // the name before it may contain spaces
		for _, field := range strings.Fields(after)[11:13] {
			n, err := strconv.ParseFloat(field, 64)
			if err != nil {
				return p, fmt.Errorf("%s: %w", file, err)
			}
			p.site += n
		}
	}
	return p, err
}

// busySince returns the busy share of all processors' time, and the share that the site's processes
// used of the time that other processes left. The latter excludes the effect of other load on the
// machine.
func (p processors) busySince(before processors) (all, site float64) {
	idle, own := p.idle-before.idle, p.site-before.site
	return 1 - idle/(p.all-before.all), own / (own + idle)
}
