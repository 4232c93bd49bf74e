package many

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"lighter/bench"
)

// Parameters are the measured inputs of a model for more nodes than can be simulated.
type Parameters struct {
	Workload string
	Bytes    float64 // that a start fetches
	Requests float64 // made by a start
	Alone    float64 // seconds of a start of a single node
	Link     float64 // rate of the hub's link, bits a second
	Lookup   float64 // seconds of the hub's processor time for a lookup
	Hub      float64 // seconds of the hub's processor time for all requests of a start
	Squid    float64 // seconds of Squid's processor time for a start; Squid uses one processor
}

// Load says for how long each resource is busy when a number of nodes start at once.
type Load struct {
	Nodes, Squids int
	Resources     []Resource
}

// Resource is a processor or link, and the seconds that it is busy.
type Resource struct {
	Name    string
	Seconds float64
}

// Model returns the load of each resource when nodes start at once. Each of the Squids serves an
// equal share of the nodes over a connection of nic bits a second, and fetches over the hub's link.
// With 0 Squids, the nodes fetch from the hub. cores is the number of the hub's processors.
//
// It assumes that each Squid requests each object and each lookup once, that all resources work in
// parallel at their measured speed under any load, that no work is wasted, and that nodes never
// give up.
func (p Parameters) Model(nodes, squids, cores int, nic float64) Load {
	n, copies := float64(nodes), float64(nodes)
	l := Load{Nodes: nodes, Squids: squids}
	if squids > 0 {
		copies = float64(squids)
	}
	l.Resources = []Resource{
		{"hub's lookups", copies * p.Lookup / float64(cores)},
		{"hub's objects", copies * (p.Hub - p.Lookup) / float64(cores)},
		{"hub's link", copies * p.Bytes * 8 / p.Link},
	}
	if squids > 0 {
		share := n / float64(squids)
		l.Resources = append(l.Resources, Resource{"a Squid's processor", share * p.Squid},
			Resource{"a Squid's connection", share * p.Bytes * 8 / nic})
	}
	return l
}

// Slowest returns the resource with the largest load.
func (l Load) Slowest() Resource {
	return slices.MaxFunc(l.Resources, func(a, b Resource) int {
		return cmp.Compare(a.Seconds, b.Seconds)
	})
}

// Parameters returns the measured parameters of a workload. ok is false if one of them was not
// measured.
func (r Result) Parameters(workload string) (p Parameters, ok bool) {
	p = Parameters{Workload: workload, Link: r.bits()}
	// Of each position, the figures of the largest number of nodes are used: they are the most
	// precise.
	most := map[string]int{}
	for _, c := range r.Cells {
		if c.Workload != workload || c.FailedStarts > 0 {
			continue
		}
		n := float64(c.Nodes)
		if c.Position == Direct && c.Nodes == 1 {
			p.Bytes, p.Requests, p.Alone = float64(c.Bytes), float64(c.Requests), c.Done.P50
		}
		if c.Nodes >= most[c.Position] {
			most[c.Position] = c.Nodes
			switch c.Position {
			case Direct:
				p.Hub = c.HubCPU / n
			case NearNodes:
				p.Squid = c.Squid.CPU / n
			}
		}
	}
	for _, rate := range r.Rates {
		if rate.Workload == workload && rate.Of == "hub" && rate.What == "chains" {
			p.Lookup = rate.CPU
		}
	}
	return p, p.Bytes > 0 && p.Lookup > 0 && p.Hub > p.Lookup && p.Squid > 0
}

const (
	modelled = 10_000 // nodes
	hubCores = 4
	squidNIC = 10e9 // bits a second
)

func millis(seconds float64) string { return fmt.Sprintf("%.2f ms", 1e3*seconds) }

// squids lists the numbers of Squids in the model's table.
var squids = []int{0, 1, 10, 50, 100}

// model prints the model's table of a workload.
func (r Result) model(out *strings.Builder, workload string) {
	p, ok := r.Parameters(workload)
	if !ok {
		return
	}
	fmt.Fprintf(out,
		"Model of %d nodes that start at once. The hub has %d processors and a link of %s; each Squid has 10 Gbit/s. "+
			"A single start takes %s and fetches %s in %.0f requests. It costs the hub %s of processor time, %s of it "+
			"for the lookup. A Squid that serves it spends %s. Seconds that each resource is busy:\n\n",
		modelled, hubCores, r.Rate, bench.Seconds(p.Alone), bench.Size(int64(p.Bytes)), p.Requests, millis(p.Hub),
		millis(p.Lookup), millis(p.Squid))
	fmt.Fprintln(out,
		"| Squids | hub's lookups | hub's objects | hub's link | a Squid's processor | a Squid's connection | "+
			"starts a second | the last is done after |")
	fmt.Fprintln(out, "|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, n := range squids {
		l := p.Model(modelled, n, hubCores, squidNIC)
		fmt.Fprintf(out, "| %d |", n)
		for i := range 5 {
			if i < len(l.Resources) {
				fmt.Fprintf(out, " %.1f |", l.Resources[i].Seconds)
			} else {
				fmt.Fprint(out, " |")
			}
		}
		slowest := l.Slowest()
		fmt.Fprintf(out, " %.0f | %.0f s: %s |\n", modelled/slowest.Seconds, p.Alone+slowest.Seconds, slowest.Name)
	}
	fmt.Fprintln(out)
}
