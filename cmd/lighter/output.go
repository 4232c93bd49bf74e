package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"lighter/wire"
)

func printJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}

// size formats a number of bytes.
func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// short returns the first digits of a digest or an ID.
func short(digest string) string {
	length := 12
	if strings.HasPrefix(digest, "sha256:") {
		length += len("sha256:")
	}
	return digest[:min(len(digest), length)]
}

// shortened returns a text as it is, unless it is a digest or a tree ID: then its first digits.
func shortened(text string) string {
	if strings.HasPrefix(text, "sha256:") || len(text) == 64 && !strings.ContainsAny(text, ":@/") {
		return short(text)
	}
	return text
}

// rowsOf returns a row for each item.
func rowsOf[T any](items []T, row func(T) []any) (rows [][]any) {
	for _, item := range items {
		rows = append(rows, row(item))
	}
	return rows
}

// section prints a blank line and a table with a row for each item, unless there are none.
func section[T any](header string, items []T, row func(T) []any) error {
	if len(items) == 0 {
		return nil
	}
	return table(os.Stdout, "\n"+header, rowsOf(items, row))
}

// table prints rows under a header, aligned.
func table(w io.Writer, header string, rows [][]any) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, header)
	for _, row := range rows {
		fmt.Fprintf(t, strings.Repeat("%v\t", len(row)-1)+"%v\n", row...)
	}
	return t.Flush()
}

// watch runs an operation and prints the progress that it shows.
func watch[T any](run func(show func(wire.Progress)) (T, error)) (T, error) {
	p := newProgress()
	defer p.end()
	return run(p.show)
}

// progress prints the progress of long operations: bars on a terminal, a line per finished item
// elsewhere.
type progress struct {
	bars    *mpb.Progress       // nil: standard error is not a terminal
	all     map[string]*mpb.Bar // by name
	printed map[string]bool     // the names of finished items that have their line
}

func newProgress() *progress {
	p := &progress{all: map[string]*mpb.Bar{}, printed: map[string]bool{}}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		p.bars = mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(40))
	}
	return p
}

// show shows a step. The numbers of some steps are not bytes. The step "wait" is not shown: it only
// keeps the connection open.
func (p *progress) show(step wire.Progress) {
	amount, counters := size(step.Bytes), decor.CountersKibiByte("% .1f / % .1f")
	switch step.Step {
	case "wait":
		return
	case "compare", "mark", "sweep", "list", "look", "find":
		amount, counters = strconv.FormatInt(step.Bytes, 10), decor.CountersNoUnit("%d / %d")
	}
	if step.Bytes == 0 && step.Total == 0 {
		amount = "" // there is nothing to count
	}
	name := step.Step + " " + shortened(step.Item)
	finished := step.Total > 0 && step.Bytes >= step.Total
	if p.bars == nil {
		if (finished || step.Total == 0) && !p.printed[name] {
			p.printed[name] = true
			fmt.Fprintln(os.Stderr, strings.TrimSpace(name+"  "+amount))
		}
		return
	}
	bar := p.all[name]
	if bar == nil {
		bar = p.bars.AddBar(step.Total, mpb.PrependDecorators(decor.Name(name, decor.WC{W: 28, C: decor.DindentRight})),
			mpb.AppendDecorators(counters))
		p.all[name] = bar
	}
	bar.SetTotal(step.Total, finished)
	bar.SetCurrent(step.Bytes)
}

// end restores the terminal, also after a failure.
func (p *progress) end() {
	for _, bar := range p.all {
		bar.Abort(false) // has no effect on complete bars
	}
	if p.bars != nil {
		p.bars.Wait()
	}
}
