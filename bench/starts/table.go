package starts

import (
	"fmt"
	"slices"
	"strings"

	"lighter/bench"
)

// markdown formats a result: the images, a table of cells for each link, and the verdicts.
func (s summary) markdown() string {
	var b strings.Builder
	for _, r := range s.Runs {
		fmt.Fprintln(&b, r)
	}
	s.markdownImages(&b)
	for _, l := range s.Links {
		if len(s.workloads(l.Name)) > 0 {
			s.markdownLink(&b, l)
		}
	}
	s.markdownBuilds(&b)
	s.markdownVerdicts(&b)
	return b.String()
}

func (s summary) markdownImages(b *strings.Builder) {
	b.WriteString("\n## Images\n\n")
	var rows [][]string
	for _, i := range s.Images {
		rows = append(rows, []string{i.Name, fmt.Sprint(i.Layers), fmt.Sprint(i.Files), megabytes(float64(i.Size)),
			megabytes(float64(i.Compressed)), s.reads(i)})
	}
	markdownTable(b, "image|layers|files|MB of files|MB compressed|its workloads read", rows)
}

// reads returns the shares of an image that its workloads read.
func (s summary) reads(i Image) string {
	var all []string
	seen := map[string]bool{}
	for _, x := range s.Samples {
		w := workload{x.Image, x.Workload}
		if x.Image != i.Name || seen[x.Workload] {
			continue
		}
		seen[x.Workload] = true
		if touched := s.touched(w); touched > 0 {
			all = append(all, fmt.Sprintf("%s %.1f %%", x.Workload, 100*touched/float64(i.Size)))
		}
	}
	return strings.Join(all, ", ")
}

const tableHead = "workload|snapshotter|n|pull s|create s|ready s|done s|**total s**|: floor|: overlayfs|: " +
	"best other|MB pull|MB ready|MB done|MB of units|% of image|2nd create s|2nd ready s|2nd total s|2nd MB"

func (s summary) markdownLink(b *strings.Builder, l bench.Link) {
	fmt.Fprintf(b, "\n## %s\n\n", linkWords(l))
	var rows [][]string
	for _, w := range s.workloads(l.Name) {
		for _, way := range s.ways() {
			x := s.line(l.Name, w, way)
			if x == nil {
				continue
			}
			rows = append(rows, []string{w.String(), way, fmt.Sprint(x.rounds), two(x.pull.median),
				two(x.create.median), two(x.ready.median), two(x.run.median),
				spread(x.total), times(x.total.median, s.floor(l, w)), times(x.total.median, total(Overlayfs)(s, l, w)),
				times(x.total.median, s.bestTotal(l, w)),
				megabytes(x.pullBytes.median), megabytes(x.readyBytes.median), megabytes(x.bytes.median), units(x),
				percent(x.bytes.median, float64(s.image(w.image).Compressed)),
				known(x, two(x.secondCreate.median)), known(x, two(x.secondReady.median)), two(x.second.median),
				known(x, megabytes(x.secondBytes.median))})
		}
	}
	markdownTable(b, tableHead, rows)
}

// units returns the bytes that were received as units, or "" for ways without that figure. The
// other bytes over the link are mostly the index, and locations, statements, manifests and headers.
func units(x *line) string {
	if !slices.Contains([]string{Lighter, LighterBefore, LighterFirst}, x.way) {
		return ""
	}
	return megabytes(x.fetched.median)
}

func (s summary) markdownVerdicts(b *strings.Builder) {
	var rows [][]string
	missed, judged := 0, 0
	for _, l := range s.Links {
		for _, v := range s.verdicts(l) {
			limit, result := "", "report"
			if v.target > 0 {
				judged++
				limit, result = fmt.Sprintf("≤ %.4g", v.target), "PASS"
			}
			if v.missed() {
				missed++
				result = "**MISS**"
			}
			rows = append(rows, []string{linkWords(l), v.what, v.figure, two(v.value), limit, result})
		}
	}
	if rows == nil {
		return
	}
	fmt.Fprintf(b, "\n## Targets: %d of %d missed\n\n", missed, judged)
	markdownTable(b, "link|workload|figure|ratio|target|", rows)
}

func markdownTable(b *strings.Builder, head string, rows [][]string) {
	fmt.Fprintf(b, "|%s|\n|%s\n", head, strings.Repeat("---|", 1+strings.Count(head, "|")))
	for _, row := range rows {
		fmt.Fprintf(b, "|%s|\n", strings.Join(row, "|"))
	}
}

// known returns text, or "" if x is from an older result, which does not have the figure.
func known(x *line, text string) string {
	if x.secondCreate.median == 0 {
		return ""
	}
	return text
}

func two(v float64) string { return fmt.Sprintf("%.2f", v) }

// spread formats a median with its minimum and maximum.
func spread(s stat) string { return fmt.Sprintf("**%.2f** (%.2f–%.2f)", s.median, s.least, s.most) }

// times formats a ratio, or returns "" without a value to compare with.
func times(value, by float64) string {
	if by <= 0 {
		return ""
	}
	return two(value / by)
}

func percent(value, of float64) string {
	if of <= 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", 100*value/of)
}

func megabytes(bytes float64) string { return fmt.Sprintf("%.1f", bytes/1e6) }
