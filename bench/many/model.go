package many

import (
	"fmt"
	"slices"
	"strings"

	"lighter/bench"
)

// Parameters are what the model of more nodes than can be simulated is made of, all
// of them measured.
type Parameters struct {
	Workload string
	Bytes    float64 // that a start fetches
	Requests float64 // that it makes
	Alone    float64 // seconds of a start that nobody else disturbs
	Link     float64 // of the hub, bits a second
	LookUp   float64 // seconds of the hub's processors that a look-up takes
	Hub      float64 // the same, of all that a start asks for
	Squid    float64 // seconds of Squid's one processor, of a start
}

// Load is how long each part is busy when that many nodes start at once, in seconds.
type Load struct {
	Nodes, Squids int
	Parts         []Part
}

// Part is one part's load.
type Part struct {
	Name    string
	Seconds float64
}

// Model says what nodes that start at once ask of each part, with Squids beside them
// that have the nodes' share each (0: none), which the hub's link feeds, when the hub
// has so many cores and each Squid a connection to its nodes of nic bits a second.
//
// It takes for granted that each Squid asks for each object and each look-up once, that
// all parts work at the same time, none of them in vain, that they are as fast as measured
// whatever waits for them, and that all nodes wait for as long as it takes.
func (p Parameters) Model(nodes, squids, cores int, nic float64) Load {
	n, copies := float64(nodes), float64(nodes)
	l := Load{Nodes: nodes, Squids: squids}
	if squids > 0 {
		copies = float64(squids)
	}
	l.Parts = []Part{
		{"hub's look-ups", copies * p.LookUp / float64(cores)},
		{"hub's objects", copies * (p.Hub - p.LookUp) / float64(cores)},
		{"hub's link", copies * p.Bytes * 8 / p.Link},
	}
	if squids > 0 {
		share := n / float64(squids)
		l.Parts = append(l.Parts, Part{"a Squid's processor", share * p.Squid}, Part{"a Squid's connection", share * p.Bytes * 8 / nic})
	}
	return l
}

// Slowest is the part that all wait for.
func (l Load) Slowest() Part {
	return slices.MaxFunc(l.Parts, func(a, b Part) int {
		switch {
		case a.Seconds < b.Seconds:
			return -1
		case a.Seconds > b.Seconds:
			return 1
		}
		return 0
	})
}

// Parameters returns what was measured of a workload. They are only there if all that
// they are made of was.
func (r Result) Parameters(workload string) (p Parameters, ok bool) {
	p = Parameters{Workload: workload, Link: r.bits()}
	most := map[string]int{} // the more nodes, the better is what they used known
	for _, c := range r.Cells {
		if c.Workload != workload || c.FailedStarts > 0 {
			continue
		}
		n := float64(c.Nodes)
		if c.Way == Direct && c.Nodes == 1 {
			p.Bytes, p.Requests, p.Alone = float64(c.Bytes), float64(c.Requests), c.Done.P50
		}
		if c.Nodes >= most[c.Way] {
			most[c.Way] = c.Nodes
			switch c.Way {
			case Direct:
				p.Hub = c.HubCPU / n
			case Near:
				p.Squid = c.Squid.CPU / n
			}
		}
	}
	for _, rate := range r.Rates {
		if rate.Workload == workload && rate.Of == "hub" && rate.What == "chains" {
			p.LookUp = rate.CPU
		}
	}
	return p, p.Bytes > 0 && p.LookUp > 0 && p.Hub > p.LookUp && p.Squid > 0
}

const (
	modelled = 10_000 // nodes
	hubCores = 4
	squidNIC = 10e9 // bits a second
)

func millis(seconds float64) string { return fmt.Sprintf("%.2f ms", 1e3*seconds) }

// squids are the numbers of Squids that the model is made for.
var squids = []int{0, 1, 10, 50, 100}

// model shows what the model says of a workload.
func (r Result) model(out *strings.Builder, workload string) {
	p, ok := r.Parameters(workload)
	if !ok {
		return
	}
	fmt.Fprintf(out, "%d nodes at once, on paper, of a hub with %d processors, %s, and Squids with 10 Gbit/s each: a start alone takes %s, and fetches %s in %.0f requests; these take %s of the hub's processors, %s of them the look-up, or %s of a Squid's. Seconds that each part is busy:\n\n",
		modelled, hubCores, r.Rate, bench.Seconds(p.Alone), bench.Size(int64(p.Bytes)), p.Requests, millis(p.Hub), millis(p.LookUp), millis(p.Squid))
	fmt.Fprintln(out, "| Squids | hub's look-ups | hub's objects | hub's link | a Squid's processor | a Squid's connection | starts a second | the last is done after |")
	fmt.Fprintln(out, "|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, n := range squids {
		l := p.Model(modelled, n, hubCores, squidNIC)
		fmt.Fprintf(out, "| %d |", n)
		for i := range 5 {
			if i < len(l.Parts) {
				fmt.Fprintf(out, " %.1f |", l.Parts[i].Seconds)
			} else {
				fmt.Fprint(out, " |")
			}
		}
		slowest := l.Slowest()
		fmt.Fprintf(out, " %.0f | %.0f s: %s |\n", modelled/slowest.Seconds, p.Alone+slowest.Seconds, slowest.Name)
	}
	fmt.Fprintln(out)
}
