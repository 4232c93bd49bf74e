package bench

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Seconds formats a time with a precision that fits its size.
func Seconds(s float64) string {
	switch {
	case s < 0.1:
		return fmt.Sprintf("%.0f ms", 1000*s)
	case s < 10:
		return fmt.Sprintf("%.2f s", s)
	}
	return fmt.Sprintf("%.1f s", s)
}

// Size formats bytes in decimal units.
func Size(n int64) string {
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

// PrintTable prints rows below a head. align has l or r for each column. A nil row prints an empty
// line.
func PrintTable(head []string, rows [][]string, align string) {
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
