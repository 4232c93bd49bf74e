package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Options select the measurements of the packages figures and hubs.
type Options struct {
	Lighter string   // the lighter binary
	Out     string   // the directory of the results
	Rounds  int      // repetitions of each measurement
	Only    []string // names of the figures to measure; empty: all

	// Of package hubs only.
	Before string // another build, to compare ingestion with; empty: none
	JSON   bool   // print the results as JSON, instead of a table
}

// Check returns an error if the options are invalid. names are the names of all figures of the
// package.
func (o Options) Check(names []string) error {
	for _, name := range o.Only {
		if !slices.Contains(names, name) {
			return fmt.Errorf("there is no figure %q; the figures are %s", name, strings.Join(names, ", "))
		}
	}
	if o.Rounds < 1 {
		return errors.New("measure at least one round")
	}
	return nil
}

// Selects reports whether a figure is to be measured.
func (o Options) Selects(name string) bool { return len(o.Only) == 0 || slices.Contains(o.Only, name) }
