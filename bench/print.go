package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// seconds shows a time with three digits that count.
func seconds(s float64) string {
	switch {
	case s < 0.1:
		return fmt.Sprintf("%.0f ms", 1000*s)
	case s < 10:
		return fmt.Sprintf("%.2f s", s)
	}
	return fmt.Sprintf("%.1f s", s)
}

// size shows bytes in decimal units, as links are sold.
func size(n int64) string {
	switch f := float64(n); {
	case n < 1e5:
		return fmt.Sprintf("%.1f kB", f/1e3)
	case n < 1e7:
		return fmt.Sprintf("%.2f MB", f/1e6)
	case n < 1e9:
		return fmt.Sprintf("%.1f MB", f/1e6)
	default:
		return fmt.Sprintf("%.2f GB", f/1e9)
	}
}

// printTable prints rows under a head; align has l or r for each column. A nil
// row is an empty line.
func printTable(head []string, rows [][]string, align string) {
	widths := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	rule := make([]string, len(head))
	for i := range rule {
		if head[i] != "" {
			rule[i] = strings.Repeat("─", widths[i])
		}
	}
	for _, row := range append([][]string{head, rule}, rows...) {
		var line strings.Builder
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if align[i] == 'r' {
				line.WriteString(space + cell + "  ")
			} else {
				line.WriteString(cell + space + "  ")
			}
		}
		fmt.Println(strings.TrimRight(line.String(), " "))
	}
}

// printFigures prints every verdict, a block a figure.
func (b *bench) printFigures() {
	var rows [][]string
	last, misses := "", 0
	for _, v := range b.verdicts {
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
	fmt.Printf("\nMedians of %d rounds, dedup, same and million once; link 1 Gbit/s.\n\n", b.rounds)
	printTable([]string{"figure", "what", "overlayfs", "Lighter", "value", "target", "", ""}, rows, "llrrrrll")
	fmt.Printf("\n%d of %d targets missed. Rows: %s/bench.json, these lines: %s/bench-figures.json.\n", misses, b.judged(), b.out, b.out)
}

// judged counts the verdicts that have a target.
func (b *bench) judged() int {
	n := 0
	for _, v := range b.verdicts {
		if v.Result != report {
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
		return seconds(v.Value)
	case v.Unit != "":
		return fmt.Sprintf("%.0f %s", v.Value, v.Unit)
	}
	return ""
}

func (v verdict) target() string {
	if v.Result == report {
		return ""
	}
	sign := "≤"
	if v.AtLeast {
		sign = "≥"
	}
	return fmt.Sprintf("%s %.4g", sign, v.Target)
}
