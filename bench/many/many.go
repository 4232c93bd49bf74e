// Package many measures a hub, a Squid proxy and a link while many nodes start the same image at
// the same time.
//
// One process simulates all nodes. Each simulated node has the connections, cache, lookups, indexes
// and devices of a real node. It replays the reads and pauses of a start in a real container,
// recorded a moment before. It has no containerd, kernel mount or process of its own.
//
// All nodes share the processors of one machine. Each figure is reported with the processor time
// used, because with many nodes the processors are the limit. The caches are in memory, because all
// nodes would share one disk.
package many

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// Options select what to measure.
type Options struct {
	Lighter   string        // the lighter binary
	Config    string        // the benchmarks' configuration file; empty: the default
	Out       string        // the directory of the results
	Workloads []string      // IMAGE/WORKLOAD of the configuration
	Nodes     []int         // numbers of nodes that start together
	Positions []string      // of Positions
	Rate      string        // of the link, in tc's notation
	RTT       time.Duration // of the link
	Spread    time.Duration // time over which the starts of the nodes are spread
	Stream    int64         // limit of the startup packs that a node fetches, in bytes; 0: none
}

// Default returns the default options.
func Default() Options {
	return Options{Workloads: []string{"python/hello", "sci/cppyy"}, Nodes: []int{1, 10, 50, 100, 200},
		Positions: Positions, Rate: "1gbit", RTT: 10 * time.Millisecond, Spread: time.Second, Stream: 2 << 30}
}

// Check returns an error if the options are invalid.
func (o Options) Check() error {
	_, err := o.plan()
	return err
}

func (o Options) plan() ([]bench.Workload, error) {
	config, err := bench.ReadConfig(o.Config)
	if err != nil {
		return nil, err
	}
	var all []bench.Workload
	for _, name := range o.Workloads {
		i := slices.IndexFunc(config.Workloads(), func(w bench.Workload) bool { return w.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no workload %q", name)
		}
		all = append(all, config.Workloads()[i])
	}
	for _, position := range o.Positions {
		if !slices.Contains(Positions, position) {
			return nil, fmt.Errorf("there is no position %q; the positions are %s", position,
				strings.Join(Positions, ", "))
		}
	}
	if len(all) == 0 || len(o.Nodes) == 0 || len(o.Positions) == 0 {
		return nil, errors.New("there is nothing to measure: name a workload, a number of nodes and a position")
	}
	if slices.Min(o.Nodes) < 1 || slices.Max(o.Nodes) > maxNodes {
		return nil, fmt.Errorf("from 1 to %d nodes can be simulated", maxNodes)
	}
	if _, err := site.ParseRate(o.Rate); err != nil {
		return nil, err
	}
	return all, nil
}

// maxNodes bounds the nodes of one process.
const maxNodes = 1000

// run is one run.
type run struct {
	*bench.Bench
	options Options
	result  Result
	starts  map[string]int64 // starts that were reported to the hub, by image
}

// Run measures, and writes many.json and many.md to Options.Out. After an error it writes what was
// measured before, and ends.
func Run(ctx context.Context, o Options) error {
	workloads, err := o.plan()
	if err != nil {
		return err
	}
	config, err := bench.ReadConfig(o.Config)
	if err != nil {
		return err
	}
	return bench.Enclosed(ctx, func(ctx context.Context) (err error) {
		if err := os.MkdirAll(o.Out, 0o755); err != nil {
			return err
		}
		s, err := site.Start(ctx, site.Options{Lighter: o.Lighter, Link: o.Rate, Delayed: true})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		r := &run{Bench: bench.New(s, config), options: o, starts: map[string]int64{},
			result: Result{Rate: o.Rate, RTT: o.RTT, Cores: int(cores), Started: time.Now().UTC()}}
		for _, w := range workloads {
			if err := r.workload(ctx, w); err != nil {
				return errors.Join(err, r.result.write(o.Out))
			}
		}
		return r.result.write(o.Out)
	})
}

// workload measures one workload.
func (r *run) workload(ctx context.Context, w bench.Workload) error {
	recorded, err := r.record(ctx, w)
	if err != nil {
		return err
	}
	if err := r.rates(ctx, recorded); err != nil {
		return err
	}
	if err := r.Site.SetLink(ctx, r.options.Rate, r.options.RTT); err != nil {
		return err
	}
	for _, position := range r.options.Positions {
		for _, nodes := range r.options.Nodes {
			if err := r.measure(ctx, recorded, position, nodes, r.options.Spread); err != nil {
				return err
			}
		}
		if most := slices.Max(r.options.Nodes); most > 1 { // all nodes at the same instant
			if err := r.measure(ctx, recorded, position, most, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) measure(ctx context.Context, w *workload, position string, nodes int, spread time.Duration) error {
	if need, there := nodes*int(nodeMemory(w.touched)), memoryLeft(); need > there*8/10 {
		bench.Say("%-12s %-7s %4d nodes  not measured: they need about %s of memory, %s are available",
			w.name, position,
			nodes, bench.Size(int64(need)), bench.Size(int64(there)))
		return nil
	}
	c, err := r.cell(ctx, w, position, nodes, spread)
	if err != nil {
		return fmt.Errorf("%d nodes start %s (%s): %w", nodes, w.name, position, err)
	}
	c.say()
	r.result.Cells = append(r.result.Cells, c)
	return nil
}

// Result is the content of many.json.
type Result struct {
	Started time.Time     `json:"started"`
	Rate    string        `json:"rate"` // of the link
	RTT     time.Duration `json:"rtt"`  // of the link
	Cores   int           `json:"cores"`
	Cells   []Cell        `json:"cells"`
	Rates   []Rate        `json:"rates"`
}

func (r Result) write(dir string) error {
	if err := bench.WriteJSON(filepath.Join(dir, "many.json"), r); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "many.md"), []byte(r.Markdown()), 0o644)
}
