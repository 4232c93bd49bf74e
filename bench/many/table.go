package many

import (
	"fmt"
	"strings"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// Markdown formats the result as tables.
func (r Result) Markdown() string {
	var out strings.Builder
	seen := map[string]bool{}
	for _, c := range r.Cells {
		if !seen[c.Workload] {
			seen[c.Workload] = true
			r.tables(&out, c.Workload)
		}
	}
	return out.String()
}

func (r Result) tables(out *strings.Builder, workload string) {
	fmt.Fprintf(out, "### %s, %s, %s a round trip, %d processors\n\n", workload, r.Rate, r.RTT, r.Cores)
	fmt.Fprintln(out,
		"| position | nodes | start p50 | p99 | pull p50 | p99 | read p50 | p99 | max | to nodes | at the hub | "+
			"requests there | hits |")
	fmt.Fprintln(out, "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, c := range r.Cells {
		if c.Workload != workload {
			continue
		}
		hits := ""
		if c.Position != Direct {
			hits = fmt.Sprintf("%.1f %%", 100*c.Squid.HitRatio())
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %d | %s |\n",
			c.Position, c.started(), bench.Seconds(c.Done.P50), bench.Seconds(c.Done.P99),
			bench.Seconds(c.Pull.P50), bench.Seconds(c.Pull.P99),
			short(c.Reads.P50), short(c.Reads.P99), short(c.Reads.Max),
			bench.Size(c.Bytes), bench.Size(c.HubBytes), c.hubRequests(), hits)
	}
	fmt.Fprintln(out,
		"\n| position | nodes | wall | link used | processors used | by all processes | nodes | Squid | hub | "+
			"link's delay | refused | failed starts, requests |")
	fmt.Fprintln(out, "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, c := range r.Cells {
		if c.Workload != workload {
			continue
		}
		fmt.Fprintf(out, "| %s | %s | %s | %.0f %% | %.0f %% | %.0f %% | %s | %s | %s | %s | %d | %d, %d |\n",
			c.Position, c.started(), bench.Seconds(c.Wall),
			100*c.linkUse(r.bits()), 100*c.processorUse(float64(r.Cores)), 100*c.Busy,
			bench.Seconds(c.NodesCPU), bench.Seconds(c.Squid.CPU), bench.Seconds(c.HubCPU), bench.Seconds(c.DelayCPU),
			c.refused(), c.FailedStarts, c.Failed)
	}
	fmt.Fprintln(out)
	r.rateTable(out, workload)
	r.model(out, workload)
}

// rateTable prints the throughput of the hub and of Squid without other limits.
func (r Result) rateTable(out *strings.Builder, workload string) {
	fmt.Fprintln(out, "| of | what | a second | bytes a second | processor time each | p99 |")
	fmt.Fprintln(out, "|---|---|--:|--:|--:|--:|")
	for _, rate := range r.Rates {
		if rate.Workload == workload {
			fmt.Fprintf(out, "| %s | %s | %.0f | %s | %.0f µs | %s |\n", rate.Of, rate.What, rate.Requests,
				bench.Size(int64(rate.Bytes)), 1e6*rate.CPU, bench.Seconds(rate.P99))
		}
	}
	fmt.Fprintln(out)
}

// short formats a time as bench.Seconds does, but short times in microseconds.
func short(seconds float64) string {
	if seconds < 1e-3 {
		return fmt.Sprintf("%.0f µs", 1e6*seconds)
	}
	return bench.Seconds(seconds)
}

// started returns how many nodes started, and whether all of them started at once.
func (c Cell) started() string {
	if c.Spread == 0 && c.Nodes > 1 {
		return fmt.Sprintf("%d at once", c.Nodes)
	}
	return fmt.Sprint(c.Nodes)
}

// linkUse returns the used share of a link with a rate in bits a second.
func (c Cell) linkUse(bits float64) float64 { return 8 * float64(c.LinkBytes) / bits / c.Wall }

// processorUse returns the share of the processors' time used by the nodes, the hub, Squid and the
// link's proxy.
func (c Cell) processorUse(cores float64) float64 {
	return (c.NodesCPU + c.Squid.CPU + c.HubCPU + c.DelayCPU) / cores / c.Wall
}

func (r Result) bits() float64 {
	bits, err := site.ParseRate(r.Rate)
	if err != nil {
		return 0 // cannot happen: the rate was parsed before
	}
	return float64(bits)
}
