package starts

import (
	"fmt"
	"slices"

	"lighter/bench"
	"lighter/bench/plot"
)

// plots returns the plots of the result as SVG, by their file names without the extension.
func (s summary) plots() map[string][]byte {
	all := map[string][]byte{}
	for _, l := range s.Links {
		if len(s.workloads(l.Name)) == 0 {
			continue
		}
		all["starts-"+l.Name] = s.plotStarts(l).SVG()
		all["again-"+l.Name] = s.plotAgain(l).SVG()
		all["bytes-"+l.Name] = s.plotBytes(l).SVG()
	}
	if len(s.Samples) > 0 {
		all["read"] = s.plotRead().SVG()
	}
	return all
}

func (s summary) plotStarts(l bench.Link) plot.Bars {
	bars := plot.Bars{Title: "Cold start, " + linkWords(l), Unit: "seconds", Parts: []string{"pull", "create", "run"}}
	bars.Groups = s.groups(l, func(x *line) plot.Bar {
		return plot.Bar{Parts: []float64{x.pull.median, x.create.median, x.run.median},
			Note: bench.Seconds(x.total.median)}
	})
	return bars
}

// plotAgain draws the warm starts of the second containers.
func (s summary) plotAgain(l bench.Link) plot.Bars {
	bars := plot.Bars{Title: "A second container at once, " + linkWords(l), Unit: "seconds",
		Parts: []string{"create", "run"}}
	bars.Groups = s.groups(l, func(x *line) plot.Bar {
		return plot.Bar{Parts: []float64{x.secondCreate.median, x.second.median - x.secondCreate.median},
			Note: bench.Seconds(x.second.median)}
	})
	return bars
}

func (s summary) plotBytes(l bench.Link) plot.Bars {
	bars := plot.Bars{Title: "Bytes over the link, and their share of the compressed image, " + linkWords(l),
		Unit:  "MB",
		Parts: []string{"by the pull", "until ready", "until the end"}}
	bars.Groups = s.groups(l, func(x *line) plot.Bar {
		share := x.bytes.median / float64(s.image(x.image).Compressed)
		return plot.Bar{Parts: []float64{x.pullBytes.median / 1e6, (x.readyBytes.median - x.pullBytes.median) / 1e6,
			(x.bytes.median - x.readyBytes.median) / 1e6},
			Note: fmt.Sprintf("%s MB, %.1f %%", megabytes(x.bytes.median), 100*share)}
	})
	return bars
}

// groups returns a group for each workload, with a bar for each way.
func (s summary) groups(l bench.Link, bar func(*line) plot.Bar) (groups []plot.Group) {
	for _, w := range s.workloads(l.Name) {
		g := plot.Group{Name: w.String()}
		for _, way := range s.ways() {
			if x := s.line(l.Name, w, way); x != nil {
				b := bar(x)
				b.Name = way
				g.Bars = append(g.Bars, b)
			}
		}
		groups = append(groups, g)
	}
	return groups
}

// plotRead draws, for the link with the most workloads, the share of its image that each workload
// reads, and the share that each way received over the link.
func (s summary) plotRead() plot.CDF {
	cdf := plot.CDF{Title: "Share of its image that a workload reads, and that comes over the link",
		X: "percent of the image; the curve shows how many workloads need at most this share"}
	l := slices.MaxFunc(s.Links,
		func(a, b bench.Link) int { return len(s.workloads(a.Name)) - len(s.workloads(b.Name)) })
	touched := plot.Series{Name: "read"}
	for _, w := range s.workloads(l.Name) {
		if t := s.touched(w); t > 0 {
			touched.Values = append(touched.Values, 100*t/float64(s.image(w.image).Size))
		}
	}
	cdf.Series = append(cdf.Series, touched)
	for _, way := range s.ways() {
		if way == LighterLocal {
			continue
		}
		series := plot.Series{Name: way}
		for _, w := range s.workloads(l.Name) {
			if x := s.line(l.Name, w, way); x != nil {
				series.Values = append(series.Values, 100*x.bytes.median/float64(s.image(w.image).Compressed))
			}
		}
		cdf.Series = append(cdf.Series, series)
	}
	return cdf
}
