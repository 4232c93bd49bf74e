package figures

import (
	"fmt"

	"lighter/bench"
)

// printFigures prints all verdicts, with a block for each figure.
func (r *run) printFigures() {
	var rows [][]string
	last, misses := "", 0
	for _, v := range r.verdicts {
		figure := ""
		if v.Figure != last {
			if figure, last = v.Figure, v.Figure; rows != nil {
				rows = append(rows, nil)
			}
		}
		if v.Result == miss {
			misses++
		}
		rows = append(rows, []string{figure, v.What, v.Overlayfs, v.Lighter, v.value(), v.target(), v.Result, v.Note})
	}
	fmt.Printf("\nMedians of %d rounds (the figures dedup, same and million: one measurement); link 1 Gbit/s.\n\n",
		r.Rounds)
	bench.PrintTable([]string{"figure", "what", "overlayfs", "Lighter", "value", "target", "", ""}, rows, "llrrrrll")
	fmt.Printf("\n%d of %d targets missed. Rows: %s/bench.json, these lines: %s/bench-figures.json.\n", misses,
		r.withTarget(), r.Out, r.Out)
}

// withTarget counts the verdicts that have a target.
func (r *run) withTarget() int {
	n := 0
	for _, v := range r.verdicts {
		if v.Result != noTarget {
			n++
		}
	}
	return n
}

func (v verdict) value() string {
	switch {
	case v.Unit == "ratio":
		return fmt.Sprintf("%.3f", v.Value)
	case v.Unit == "s":
		return bench.Seconds(v.Value)
	case v.Unit == "%":
		return fmt.Sprintf("%.2f %%", v.Value)
	case v.Unit != "":
		return fmt.Sprintf("%.0f %s", v.Value, v.Unit)
	}
	return ""
}

func (v verdict) target() string {
	if v.Result == noTarget {
		return ""
	}
	sign := "≤"
	if v.AtLeast {
		sign = "≥"
	}
	return fmt.Sprintf("%s %.4g", sign, v.Target)
}
