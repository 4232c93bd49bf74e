package starts

import (
	"fmt"
	"math"
	"time"

	"lighter/bench"
)

// The peers of the default configuration that are compared with each other.
const (
	eStargz        = "estargz"
	soci           = "soci"
	lighterEStargz = "lighter-estargz"
	lighterSOCI    = "lighter-soci"
	attached       = "lighter-attached"
	attachedTraced = "lighter-attached-traced"
)

// ratio is a figure with targets, which are maxima. A workload's ratio over a link is value : by,
// if both are known. If mean has a target for any link, the geometric mean of a link's workloads is
// a figure, too.
type ratio struct {
	figure    string
	value, by measure
	each      measure // the target of a workload; 0: none
	mean      limits  // the targets of the mean
}

// ratios are the figures, in the order of the table.
var ratios = []ratio{
	{"total : floor", total(Lighter), summary.floor, always(1.3), limits{}},
	{"total : best other", total(Lighter), summary.bestTotal, bestOtherTarget, limits{}},
	{"run : local overlayfs, or the link", median(Lighter, func(x *line) stat { return x.run }), summary.localRun,
		always(1.2), limits{}},
	{"bytes fetched : touched", median(Lighter, func(x *line) stat { return x.fetched }), touched, always(1.3),
		limits{}},
	{"all bytes over the link : touched", median(Lighter, func(x *line) stat { return x.bytes }), touched, always(0),
		limits{}},
	{"first start : start with traces", total(LighterFirst), total(Lighter), limits{near: 2, far: 4}.each, limits{}},

	// Without a hub.
	{"total, " + lighterEStargz + " : " + eStargz, total(lighterEStargz), total(eStargz), always(1),
		limits{near: 0.7, far: 0.5}},
	{"total, " + lighterSOCI + " : " + soci, total(lighterSOCI), total(soci), always(1), limits{near: 0.7, far: 0.5}},
	{"total, " + attachedTraced + " : " + Lighter, total(attachedTraced), total(Lighter), always(1.5), limits{}},
	{"total, " + attached + " : " + soci, total(attached), total(soci), always(0.6), limits{}},
	{"bytes before the first process, " + attached + " : " + soci, createBytes(attached), createBytes(soci),
		only("sci", 0.25), limits{}},
	{"second start, " + attached + " : " + Lighter, second(attached), second(Lighter), always(0),
		limits{near: 1.05, far: 1.05}},
}

// A measure returns a value of a workload over a link. 0: unknown, or none.
type measure func(s summary, l bench.Link, w workload) float64

// median measures a part of the rounds of a way.
func median(way string, part func(*line) stat) measure {
	return func(s summary, l bench.Link, w workload) float64 {
		if x := s.line(l.Name, w, way); x != nil {
			return part(x).median
		}
		return 0
	}
}

func total(way string) measure { return median(way, func(x *line) stat { return x.total }) }

func second(way string) measure { return median(way, func(x *line) stat { return x.second }) }

// createBytes measures the bytes that the machine received before the first process.
func createBytes(way string) measure { return median(way, func(x *line) stat { return x.createBytes }) }

func touched(s summary, _ bench.Link, w workload) float64 { return s.touchedCompressed(w) }

// bestTotal measures the total of the fastest way that is not Lighter.
func (s summary) bestTotal(l bench.Link, w workload) float64 {
	if x := s.bestOther(l.Name, w); x != nil {
		return x.total.median
	}
	return 0
}

// localRun measures the longer of overlayfs' run with local data, and the transfer of the touched
// bytes.
func (s summary) localRun(l bench.Link, w workload) float64 {
	full, wire := s.line(l.Name, w, Overlayfs), s.touchedCompressed(w)
	if full == nil || wire == 0 {
		return 0
	}
	return max(full.run.median, transferTime(l, wire))
}

// Targets of Lighter's total : total of the best other snapshotter.
const (
	otherRatio = 1.0
	slowRatio  = 0.8 // if the best other takes more than slowOther times the floor
	slowOther  = 2.0
)

func bestOtherTarget(s summary, l bench.Link, w workload) float64 {
	if floor := s.floor(l, w); floor > 0 && s.bestTotal(l, w) > slowOther*floor {
		return slowRatio
	}
	return otherRatio
}

// always is a target of all workloads.
func always(target float64) measure {
	return func(summary, bench.Link, workload) float64 { return target }
}

// only is a target of the workloads of one image.
func only(image string, target float64) measure {
	return func(_ summary, _ bench.Link, w workload) float64 {
		if w.image == image {
			return target
		}
		return 0
	}
}

// limits are targets by a link's RTT: up to nearRTT, and from farRTT on. Other links have none.
type limits struct{ near, far float64 }

const (
	nearRTT = time.Millisecond
	farRTT  = 50 * time.Millisecond
)

func (m limits) over(l bench.Link) float64 {
	switch rtt := time.Duration(l.RTT); {
	case rtt <= nearRTT:
		return m.near
	case rtt >= farRTT:
		return m.far
	}
	return 0
}

// each is a target of all workloads.
func (m limits) each(_ summary, l bench.Link, _ workload) float64 { return m.over(l) }

// verdict is a ratio with its target: a maximum, or 0 for no target.
type verdict struct {
	what          string // the workload, or how many workloads the mean is of
	figure        string
	value, target float64
}

func (v verdict) missed() bool { return v.target > 0 && v.value > v.target }

// verdicts compares the ratios over a link with their targets: first those of each workload, then
// the means. It skips ratios with missing figures.
func (s summary) verdicts(l bench.Link) (all []verdict) {
	logs := make([][]float64, len(ratios))
	for _, w := range s.workloads(l.Name) {
		for i, r := range ratios {
			value, by := r.value(s, l, w), r.by(s, l, w)
			if value > 0 && by > 0 {
				all = append(all, verdict{w.String(), r.figure, value / by, r.each(s, l, w)})
				logs[i] = append(logs[i], math.Log(value/by))
			}
		}
	}
	for i, r := range ratios {
		if n := len(logs[i]); n > 0 && r.mean != (limits{}) {
			all = append(all, verdict{fmt.Sprintf("geometric mean of %d", n), r.figure, math.Exp(average(logs[i])),
				r.mean.over(l)})
		}
	}
	return all
}
