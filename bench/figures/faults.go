package figures

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// Faults are measured by reads of single pages. Each page is read once, in random order and without
// read-ahead, so that each read is a separate fault. Uncached pages are also far apart.
const (
	faultPage   = 4096    // bytes
	farApart    = 2 << 20 // distance of uncached pages, in bytes: no two are in the same unit
	maxFaults   = 4000    // reads of one measurement
	busyReaders = 16      // concurrent readers
)

// faults measures the duration of single faults, one at a time and concurrently. The chunks are in
// the node's cache, whose files are in the page cache or only on the disk, or they are uncached.
func (r *run) faults(ctx context.Context) error {
	if err := r.Need(ctx, largestImage); err != nil {
		return err
	}
	for _, readers := range []int{1, busyReaders} {
		took := map[string][]float64{}
		for range r.Rounds {
			if err := r.faultRound(ctx, readers, took); err != nil {
				return err
			}
		}
		for _, where := range []string{"cached, in memory", "cached, on the disk", "uncached"} {
			r.reportFaults(where, readers, took[where])
		}
	}
	return nil
}

// faultRound adds the durations of one round to took, by the location of the bytes.
func (r *run) faultRound(ctx context.Context, readers int, took map[string][]float64) (err error) {
	c, files, err := r.freshLargest(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Remove(ctx)) }()
	file, err := os.Open(filepath.Join(c.Root, files.largest))
	if err != nil {
		return err
	}
	defer file.Close()
	measure := func(where string, apart int64) error {
		times, err := randomFaults(file, files.largestSize, apart, readers)
		took[where] = append(took[where], times...)
		return err
	}
	if err := measure("uncached", farApart); err != nil {
		return err
	}
	var content reader
	if _, err := content.read(c.Root, files.largest); err != nil {
		return err
	}
	// This drops the file's pages from the page cache, but not the pages of the chunk cache's
	// files.
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	if err := measure("cached, in memory", faultPage); err != nil {
		return err
	}
	if err := site.DropCaches(); err != nil {
		return err
	}
	return measure("cached, on the disk", faultPage)
}

// randomFaults reads pages of a file in random order, at offsets that are multiples of apart, with
// several concurrent readers. It returns the duration of each read, in seconds.
func randomFaults(file *os.File, size, apart int64, readers int) ([]float64, error) {
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_RANDOM); err != nil { // no read-ahead by the kernel
		return nil, err
	}
	places := rand.Perm(int(size / apart))
	places = places[:min(len(places), maxFaults)]
	took := make([]float64, len(places))
	var group errgroup.Group
	for n := range readers {
		group.Go(func() error {
			page := make([]byte, faultPage)
			for i := n; i < len(places); i += readers {
				start := time.Now()
				if _, err := file.ReadAt(page, int64(places[i])*apart); err != nil {
					return err
				}
				took[i] = time.Since(start).Seconds()
			}
			return nil
		})
	}
	return took, group.Wait()
}

func (r *run) reportFaults(where string, readers int, took []float64) {
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	what := fmt.Sprintf("%s, %d at a time", where, readers)
	bench.Say("%s: p50 %s, p99 %s of %d faults", what, micros(p50), micros(p99), len(took))
	r.rows = append(r.rows, benchRow{row: row{Workload: "fault: " + what, Mode: site.Lighter}, Image: largestImage,
		Rounds: r.Rounds,
		Values: map[string]float64{"p50_s": p50, "p99_s": p99, "faults": float64(len(took))}})
	r.verdicts = append(r.verdicts, verdict{Figure: "faults", What: what, Lighter: "p50 " + micros(p50),
		Value: 1e6 * p99, Unit: "µs at p99", Result: noTarget})
}

// micros formats a short time.
func micros(s float64) string {
	if s < 0.01 {
		return fmt.Sprintf("%.0f µs", 1e6*s)
	}
	return bench.Seconds(s)
}
