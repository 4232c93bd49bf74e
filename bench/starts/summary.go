package starts

import (
	"slices"
	"strings"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// stat summarizes a figure of several rounds.
type stat struct{ median, least, most float64 }

func statOf(samples []Sample, part func(Sample) float64) stat {
	var values []float64
	for _, s := range samples {
		values = append(values, part(s))
	}
	return stat{bench.Median(values), slices.Min(values), slices.Max(values)}
}

// line summarizes the rounds of a cell. Times are in seconds.
type line struct {
	cell
	rounds                            int
	pull, create, ready, run          stat
	total                             stat
	pullBytes, readyBytes, bytes      stat
	createBytes                       stat // in older results zero
	second, secondCreate, secondReady stat // in older results, secondCreate and secondReady are zero
	secondBytes                       stat
	fetched, read                     stat
}

func lineOf(c cell, samples []Sample) *line {
	of := func(part func(Sample) float64) stat { return statOf(samples, part) }
	return &line{cell: c, rounds: len(samples),
		pull:        of(func(s Sample) float64 { return s.Pull }),
		create:      of(func(s Sample) float64 { return s.Create }),
		ready:       of(func(s Sample) float64 { return s.Ready }),
		run:         of(func(s Sample) float64 { return s.Run }),
		total:       of(func(s Sample) float64 { return s.Total() }),
		pullBytes:   of(func(s Sample) float64 { return float64(s.PullBytes) }),
		createBytes: of(func(s Sample) float64 { return float64(s.CreateBytes) }),
		readyBytes:  of(func(s Sample) float64 { return float64(s.ReadyBytes) }),
		bytes:       of(func(s Sample) float64 { return float64(s.Bytes) }),

		second:       of(func(s Sample) float64 { return s.Second }),
		secondCreate: of(func(s Sample) float64 { return s.SecondCreate }),
		secondReady:  of(func(s Sample) float64 { return s.SecondReady }),
		secondBytes:  of(func(s Sample) float64 { return float64(s.SecondBytes) }),

		fetched: of(func(s Sample) float64 { return float64(s.Fetched) }),
		read:    of(func(s Sample) float64 { return float64(s.Read) }),
	}
}

// summary holds a result's cells, for comparisons.
type summary struct {
	Result
	lines map[cell]*line
}

func summarize(r Result) summary {
	samples := map[cell][]Sample{}
	for _, s := range r.Samples {
		samples[s.cell()] = append(samples[s.cell()], s)
	}
	s := summary{r, map[cell]*line{}}
	for c, all := range samples {
		s.lines[c] = lineOf(c, all)
	}
	return s
}

// ways returns the measured ways: overlayfs, Lighter's ways, and then the peers.
func (s summary) ways() []string {
	known := []string{Overlayfs, LighterFirst, Lighter, LighterBefore, LighterLocal}
	var ways []string
	for _, way := range known {
		if slices.ContainsFunc(s.Samples, func(x Sample) bool { return x.Way == way }) {
			ways = append(ways, way)
		}
	}
	for _, x := range s.Samples {
		if !slices.Contains(known, x.Way) && !slices.Contains(ways, x.Way) {
			ways = append(ways, x.Way)
		}
	}
	return ways
}

// workload identifies a workload of an image.
type workload struct{ image, name string }

func (w workload) String() string { return w.image + "/" + w.name }

// workloads lists the workloads measured over a link, in the order of the images.
func (s summary) workloads(link string) (all []workload) {
	for _, image := range s.Images {
		for _, x := range s.Samples {
			if w := (workload{x.Image, x.Workload}); x.Link == link && x.Image == image.Name &&
				!slices.Contains(all, w) {
				all = append(all, w)
			}
		}
	}
	return all
}

func (s summary) line(link string, w workload, way string) *line {
	return s.lines[cell{link, w.image, w.name, way}]
}

func (s summary) image(name string) Image {
	return s.Images[slices.IndexFunc(s.Images, func(i Image) bool { return i.Name == name })]
}

// touched returns the bytes that a workload reads of its image: the bytes that the kernel read from
// the device in the way LighterLocal. 0: unknown.
func (s summary) touched(w workload) float64 {
	for _, l := range s.Links {
		if local := s.line(l.Name, w, LighterLocal); local != nil {
			return local.read.median
		}
	}
	return 0
}

// touchedCompressed returns touched, multiplied by the image's compression ratio.
func (s summary) touchedCompressed(w workload) float64 {
	i := s.image(w.image)
	if i.Size == 0 {
		return 0
	}
	return s.touched(w) * float64(i.Compressed) / float64(i.Size)
}

// transferTime returns the time that a link needs for a number of bytes, in seconds.
func transferTime(l bench.Link, bytes float64) float64 {
	bits, err := site.ParseRate(l.Rate)
	if err != nil {
		return 0 // cannot happen: the rate was parsed before
	}
	return bytes * 8 / float64(bits)
}

// floor returns an approximate lower bound of a start: the start with local data, the touched bytes
// at the link's rate, and three round trips. 0: unknown.
func (s summary) floor(l bench.Link, w workload) float64 {
	local := s.line(l.Name, w, LighterLocal)
	if local == nil {
		return 0
	}
	return local.total.median + transferTime(l, s.touchedCompressed(w)) + 3*time.Duration(l.RTT).Seconds()
}

// bestOther returns the fastest way that is not Lighter; nil: there is none.
func (s summary) bestOther(link string, w workload) (best *line) {
	for _, way := range s.ways() {
		l := s.line(link, w, way)
		if l == nil || strings.HasPrefix(way, Lighter) {
			continue
		}
		if best == nil || l.total.median < best.total.median {
			best = l
		}
	}
	return best
}
