package figures

import (
	"context"
	"errors"
	"fmt"

	"lighter/bench"
	"lighter/test/testkit/site"
)

const (
	// smallCache is the size of a cache that is too small, in bytes. The file that is read has at
	// least overfull times this size.
	smallCache = 240 << 20
	overfull   = 3
)

// full measures the cost of constant eviction. It reads a file of at least three times the cache's
// size twice ("full"), and compares the speeds with those of a large cache ("room").
func (r *run) full(ctx context.Context) (err error) {
	if err := r.Need(ctx, largestImage); err != nil {
		return err
	}
	speeds := map[string][]float64{}
	for _, cache := range []string{"room", "full"} {
		var args []string
		if cache == "full" {
			args = []string{"--cache-size", fmt.Sprint(smallCache)}
		}
		r.Site.SetNodeArgs(args...)
		for range r.Rounds {
			if err := r.fullRound(ctx, cache, speeds); err != nil {
				return err
			}
		}
	}
	r.Site.SetNodeArgs()
	if err := r.Wipe(ctx); err != nil {
		return err
	}
	r.reportFull(speeds)
	return nil
}

// fullRound adds the speeds of the first and the second pass over the file: bytes of the file a
// second, and bytes over the link a second.
func (r *run) fullRound(ctx context.Context, cache string, speeds map[string][]float64) (err error) {
	m := r.Site.Machine
	c, files, err := r.freshLargest(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Remove(ctx)) }()
	if files.largestSize < overfull*smallCache {
		return fmt.Errorf("%s has %d bytes, want %d times the cache's size", files.largest, files.largestSize,
			overfull)
	}
	for _, pass := range []string{"first", "again"} {
		if err := site.DropCaches(); err != nil {
			return err
		}
		before, err := m.Bytes()
		if err != nil {
			return err
		}
		var content reader
		var sum int64
		took, err := timed(func() (err error) { sum, err = content.read(c.Root, files.largest); return err })
		if err != nil {
			return err
		}
		after, err := m.Bytes()
		if err != nil {
			return err
		}
		key := cache + " " + pass
		speeds[key] = append(speeds[key], float64(sum)/took)
		speeds[key+" link"] = append(speeds[key+" link"], float64(after-before)/took)
		bench.Say("%s: %s in %s, %.0f MB/s of the file, %.0f MB/s over the link", key, bench.Size(sum),
			bench.Seconds(took), float64(sum)/took/1e6, float64(after-before)/took/1e6)
	}
	return nil
}

func (r *run) reportFull(speeds map[string][]float64) {
	values := map[string]float64{}
	for key, all := range speeds {
		values[key+"_MBps"] = bench.Median(all) / 1e6
	}
	r.rows = append(r.rows, benchRow{row: row{Workload: "reading three times the cache", Mode: site.Lighter},
		Image: largestImage, Rounds: r.Rounds, Values: values})
	add := func(what string, value float64, note string) {
		r.verdicts = append(r.verdicts, verdict{Figure: "full", What: what, Value: value, Unit: "ratio",
			Result: noTarget, Note: note})
	}
	of := func(key string) float64 { return bench.Median(speeds[key]) }
	note := func(key string) string {
		return fmt.Sprintf("%.0f MB/s of the file, %.0f MB/s over the link", of(key)/1e6, of(key+" link")/1e6)
	}
	add("first pass : first pass with a large cache", of("full first")/of("room first"),
		note("full first")+"; with a large cache "+note("room first"))
	add("second pass, over the link : link", of("full again link")/linkSpeed, note("full again"))
	add("second pass : second pass with a large cache", of("full again")/of("room again"),
		"with a large cache "+note("room again"))
}
