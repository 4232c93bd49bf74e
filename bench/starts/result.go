package starts

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"lighter/bench"
)

// resultFormat identifies files of results.
const resultFormat = "lighter-starts/1"

// Result is the content of starts.json.
type Result struct {
	Format  string        `json:"format"`
	Runs    []bench.About `json:"runs"`
	Links   []bench.Link  `json:"links"`
	Images  []Image       `json:"images"`
	Samples []Sample      `json:"samples"`
}

// Image describes an image. Sizes are in bytes.
type Image struct {
	Name       string `json:"name"`
	Layers     int    `json:"layers"`
	Files      int64  `json:"files"`
	Size       int64  `json:"bytes"`            // of its files
	Compressed int64  `json:"compressed_bytes"` // of its layers in the registry
}

// Sample holds the figures of one start.
type Sample struct {
	Link     string `json:"link"`
	Image    string `json:"image"`
	Workload string `json:"workload"`
	Way      string `json:"snapshotter"`
	Round    int    `json:"round"`
	bench.Start
	// Until the end of the first container, only of Lighter's ways: the compressed bytes of the
	// units that the node has fetched, and the bytes that the kernel has read from the device.
	Fetched int64 `json:"fetched_bytes,omitempty"`
	Read    int64 `json:"read_bytes,omitempty"`
}

// cell identifies what was measured. A cell has one sample for each round.
type cell struct{ link, image, workload, way string }

func (s Sample) cell() cell { return cell{s.Link, s.Image, s.Workload, s.Way} }

// Read reads a file of results.
func Read(path string) (r Result, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	if r.Format != resultFormat || len(r.Runs) == 0 {
		return r, fmt.Errorf("%s: not a result of lighter-bench: format %q, want %q", path, r.Format,
			resultFormat)
	}
	return r, nil
}

// started returns the time of the latest run.
func (r Result) started() time.Time {
	return slices.MaxFunc(r.Runs, func(a, b bench.About) int { return a.Started.Compare(b.Started) }).Started
}

// Merge combines the results of partial runs. If several results have a cell, the latest result's
// rounds are kept.
func Merge(all ...Result) (Result, error) {
	slices.SortStableFunc(all, func(a, b Result) int { return a.started().Compare(b.started()) })
	m := Result{Format: resultFormat}
	for _, r := range all {
		for _, run := range r.Runs {
			if !slices.Contains(m.Runs, run) {
				m.Runs = append(m.Runs, run)
			}
		}
		var errs []error
		m.Links, errs = union("link", m.Links, r.Links, func(l bench.Link) string { return l.Name },
			func(l bench.Link) bench.Link { l.Workloads = nil; return l }, errs)
		m.Images, errs = union("image", m.Images, r.Images, func(i Image) string { return i.Name },
			func(i Image) Image { return i }, errs)
		if err := errors.Join(errs...); err != nil {
			return m, err
		}
		measured := map[cell]bool{}
		for _, s := range r.Samples {
			measured[s.cell()] = true
		}
		m.Samples = slices.DeleteFunc(m.Samples, func(s Sample) bool { return measured[s.cell()] })
		m.Samples = append(m.Samples, r.Samples...)
	}
	return m, nil
}

// union adds to have the elements of more whose name have does not contain. For an element whose
// name have contains, it adds an error to errs unless what returns equal values for both elements.
func union[T any](kind string, have, more []T, name func(T) string, what func(T) T, errs []error) ([]T, []error) {
	for _, one := range more {
		i := slices.IndexFunc(have, func(other T) bool { return name(other) == name(one) })
		switch {
		case i < 0:
			have = append(have, one)
		case !reflect.DeepEqual(what(have[i]), what(one)):
			errs = append(errs, fmt.Errorf("merge results: %s %s is not the same in all results", kind, name(one)))
		}
	}
	return have, errs
}

// Write writes the results, the table and the plots to a directory, which it creates if necessary.
func (r Result) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := bench.WriteJSON(filepath.Join(dir, "starts.json"), r); err != nil {
		return err
	}
	s := summarize(r)
	errs := []error{os.WriteFile(filepath.Join(dir, "starts.md"), []byte(s.markdown()), 0o644)}
	for name, svg := range s.plots() {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name+".svg"), svg, 0o644))
	}
	return errors.Join(errs...)
}

// linkWords formats a link: 1 Gbit/s, 10 ms.
func linkWords(l bench.Link) string {
	rate := strings.NewReplacer("gbit", " Gbit/s", "mbit", " Mbit/s", "kbit", " kbit/s").Replace(l.Rate)
	return fmt.Sprintf("%s, %v ms", rate, float64(time.Duration(l.RTT))/1e6)
}
