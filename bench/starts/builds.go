package starts

import (
	"fmt"
	"math"
	"strings"
)

// paired compares a figure of two builds in the rounds of a cell. In a round the builds are
// measured at nearly the same time, so other load on the machine affects both.
type paired struct {
	rounds int
	mean   float64 // the geometric mean of the rounds' ratios
	error  float64 // the standard error of mean, as a factor minus one
}

func (p paired) String() string { return fmt.Sprintf("%.3f ± %.3f", p.mean, p.error) }

// pairs compares a figure of a workload over a link by this build (lighter) with that by the other
// build (lighter-before), round by round. It skips rounds that only one build has, and rounds in
// which the figure is zero.
func (s summary) pairs(link string, w workload, part func(Sample) float64) paired {
	other := map[int]float64{}
	for _, x := range s.Samples {
		if x.cell() == (cell{link, w.image, w.name, LighterBefore}) {
			other[x.Round] = part(x)
		}
	}
	var logs []float64
	for _, x := range s.Samples {
		if x.cell() == (cell{link, w.image, w.name, Lighter}) && part(x) > 0 && other[x.Round] > 0 {
			logs = append(logs, math.Log(part(x)/other[x.Round]))
		}
	}
	if len(logs) == 0 {
		return paired{}
	}
	n, mean, squares := float64(len(logs)), average(logs), 0.0
	for _, l := range logs {
		squares += (l - mean) * (l - mean)
	}
	p := paired{rounds: len(logs), mean: math.Exp(mean), error: math.Inf(1)}
	if n > 1 {
		p.error = math.Exp(math.Sqrt(squares/(n-1)/n)) - 1
	}
	return p
}

// average returns the arithmetic mean of at least one value.
func average(values []float64) (mean float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	return mean
}

// markdownBuilds compares lighter with lighter-before, if both were measured.
func (s summary) markdownBuilds(b *strings.Builder) {
	var rows [][]string
	for _, l := range s.Links {
		for _, w := range s.workloads(l.Name) {
			total := s.pairs(l.Name, w, func(x Sample) float64 { return x.Total() })
			if total.rounds == 0 {
				continue
			}
			rows = append(rows, []string{linkWords(l), w.String(), fmt.Sprint(total.rounds), total.String(),
				s.pairs(l.Name, w, func(x Sample) float64 { return x.Pull }).String(),
				s.pairs(l.Name, w, func(x Sample) float64 { return x.Run }).String(),
				s.pairs(l.Name, w, func(x Sample) float64 { return x.Second }).String(),
				s.pairs(l.Name, w, func(x Sample) float64 { return float64(x.Bytes) }).String()})
		}
	}
	if rows == nil {
		return
	}
	b.WriteString("\n## Ratios of lighter to lighter-before\n\nGeometric means of paired rounds, with their " +
		"standard errors.\n\n")
	markdownTable(b, "link|workload|pairs|total|pull|run|second start|bytes", rows)
}
