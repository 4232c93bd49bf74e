package hubs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lighter/bench"
)

// print prints the results on the standard output.
func (r *run) print() error {
	if r.JSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(r.results)
	}
	fmt.Printf("\n%s\n%s All measured values: %s/hubs.json.\n\n", r.results.Run, r.results.medians(), r.Out)
	bench.PrintTable(heads, r.results.rows(), "llrrl")
	return nil
}

// write writes the results to files of a directory.
func (r Results) write(dir string) error {
	if err := bench.WriteJSON(filepath.Join(dir, "hubs.json"), r); err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n%s\n\n|%s|\n|---|---|--:|--:|---|\n", r.Run, r.medians(), strings.Join(heads, "|"))
	for _, row := range r.rows() {
		fmt.Fprintf(&text, "|%s|\n", strings.Join(row, "|"))
	}
	return os.WriteFile(filepath.Join(dir, "hubs.md"), []byte(text.String()), 0o644)
}

// medians says what the values are medians of.
func (r Results) medians() string {
	return fmt.Sprintf("Medians of %d rounds; api: of %d requests; dead, disk and the processor shares of idle: "+
		"one measurement.", r.Rounds, apiRequests)
}

var heads = []string{"figure", "what", "value", "target", "result"}

func (r Results) rows() (rows [][]string) {
	for _, v := range r.Lines {
		target := ""
		if v.Target != 0 {
			sign := "≤"
			if v.Least {
				sign = "≥"
			}
			target = fmt.Sprintf("%s %.4g", sign, v.Target)
			if v.Unit == "s" {
				target += " s"
			}
		}
		rows = append(rows, []string{v.Figure, v.What, v.value(), target, v.Result})
	}
	return rows
}

func (v Result) value() string {
	switch v.Unit {
	case "ratio":
		return fmt.Sprintf("%.3f", v.Value)
	case "s":
		return bench.Seconds(v.Value)
	}
	return fmt.Sprintf("%.1f %s", v.Value, v.Unit)
}
