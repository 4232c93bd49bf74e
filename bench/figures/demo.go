package figures

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// demoWorkloads lists the demo's three commands.
var demoWorkloads = []string{"sci/bash", "sci/uproot", "sci/cppyy"}

// demo runs the three commands in both modes and prints the time that a user waits. Then it pulls
// the image through a hub that has never seen it.
func (r *run) demo(ctx context.Context) error {
	bench.Say("A site is up: registry, hub, and a machine behind a link of 1 Gbit/s.")
	if err := r.Need(ctx, "sci"); err != nil {
		return err
	}
	inspection, err := r.Inspect(ctx, "sci")
	if err != nil {
		return err
	}
	var rows []row
	starts := map[string]bench.Start{}
	for _, w := range r.workloads {
		if !slices.Contains(demoWorkloads, w.String()) {
			continue
		}
		for _, mode := range modes {
			c, err := r.ColdStart(ctx, mode, w)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", w, mode, err)
			}
			bench.Say("%-42s %-10s %8s", shown(w.Argv), mode, bench.Seconds(c.Total()))
			starts[w.String()+mode] = c
			rows = append(rows, rowOf(c, mode, w))
		}
	}
	unseen, err := r.demoThrough(ctx)
	if err != nil {
		return err
	}
	for i, mode := range []string{"first pull through the hub", "the next machine"} {
		rows = append(rows, rowOf(unseen.starts[i], mode, unseen.workload))
	}
	if err := bench.WriteJSON(filepath.Join(r.Out, "demo.json"), rows); err != nil {
		return err
	}
	fmt.Printf("\nAn image of %d layers: %s compressed, %s in %d files. A cold machine, a link of 1 Gbit/s.\n"+
		"Seconds from the pull to the end of the command:\n\n", len(inspection.Layers), bench.Size(inspection.Size),
		bench.Size(inspection.Bytes), inspection.Files)
	r.printDemo(starts)
	unseen.print()
	fmt.Printf("\nThe rows are in %s.\n", filepath.Join(r.Out, "demo.json"))
	return nil
}

// unseen has the starts of an image that a hub has never seen: of the machine that pulls it through
// the hub, and of the next one.
type unseen struct {
	workload bench.Workload
	starts   [2]bench.Start
	ready    float64 // seconds from the end of the first start until the hub had ingested the image
}

// demoThrough starts a hub that has no image, pulls the image through it, and starts it lazily on
// the next machine: the same one, wiped.
func (r *run) demoThrough(ctx context.Context) (u unseen, err error) {
	if u.workload, err = r.throughCommand(); err != nil {
		return u, err
	}
	dir, err := os.MkdirTemp("", "demo-")
	if err != nil {
		return u, err
	}
	defer os.RemoveAll(dir)
	pull, err := r.throughPuller(dir)
	if err != nil {
		return u, err
	}
	err = r.withHub(ctx, throughTable(throughRegistry()), func(hub *site.Hub) error {
		bench.Say("Another hub is up, which has never seen the image.")
		if u.starts[0], err = r.throughStart(ctx, pull, site.Overlayfs); err != nil {
			return fmt.Errorf("the first pull through the hub: %w", err)
		}
		bench.Say("%-42s %-10s %8s", shown(u.workload.Argv), "first", bench.Seconds(u.starts[0].Total()))
		if u.ready, err = timed(func() error {
			return awaitReady(ctx, hub, throughRegistry()+"/"+throughImage+":latest", time.Second)
		}); err != nil {
			return err
		}
		r.Site.UseHub(hub)
		if u.starts[1], err = r.throughStart(ctx, pull, site.Lighter); err != nil {
			return fmt.Errorf("the start on the next machine: %w", err)
		}
		bench.Say("%-42s %-10s %8s", shown(u.workload.Argv), "next", bench.Seconds(u.starts[1].Total()))
		return nil
	})
	return u, err
}

func (u unseen) print() {
	fmt.Printf("\nThe same image, and a hub that has never seen it. The first machine pulls all of it through the "+
		"hub.\n%s later it is ready there, and lazy on the next machine:\n\n", bench.Seconds(u.ready))
	first, next := u.starts[0], u.starts[1]
	bench.PrintTable(demoHead, [][]string{
		demoLine(shown(u.workload.Argv), "first machine", first, first.Total(), "", ""),
		demoLine("", "next machine", next, first.Total(), compared(first.Total()/next.Total(), "faster", "slower"),
			compared(float64(first.Bytes)/float64(next.Bytes), "less", "more"))}, demoColumns)
}

// demoHead and demoColumns are the columns of the demo's tables.
var demoHead = []string{"command", "", "pull", "run", "total", "", "", "over the link", ""}

const demoColumns = "llrrrllrl"

// printDemo prints two lines for each command, with the times as a bar and a number, and the bytes
// received over the link.
func (r *run) printDemo(starts map[string]bench.Start) {
	longest := 0.0
	for _, c := range starts {
		longest = max(longest, c.Total())
	}
	var rows [][]string
	for _, w := range r.workloads {
		over, ok := starts[w.String()+site.Overlayfs]
		if !ok {
			continue
		}
		lazy := starts[w.String()+site.Lighter]
		faster := compared(over.Total()/lazy.Total(), "faster", "slower")
		less := compared(float64(over.Bytes)/float64(lazy.Bytes), "less", "more")
		if rows != nil {
			rows = append(rows, nil)
		}
		rows = append(rows,
			demoLine(shown(w.Argv), "full pull", over, longest, "", ""),
			demoLine("", "Lighter", lazy, longest, faster, less))
	}
	bench.PrintTable(demoHead, rows, demoColumns)
}

func demoLine(command, how string, c bench.Start, longest float64, faster, less string) []string {
	return []string{command, how, bench.Seconds(c.Pull), bench.Seconds(c.Create + c.Run), bench.Seconds(c.Total()),
		bar(c.Pull, c.Create+c.Run, longest), faster, bench.Size(c.Bytes), less}
}

// bar draws the pull dark and the run light. The longest bar is barWidth wide.
func bar(pull, run, longest float64) string {
	const barWidth = 30
	dark := int(pull/longest*barWidth + 0.5)
	all := max(1, int((pull+run)/longest*barWidth+0.5))
	return strings.Repeat("█", min(dark, all)) + strings.Repeat("░", all-min(dark, all))
}

// compared formats a factor: "2.0× faster" for 2, and "2.0× slower" for 0.5.
func compared(factor float64, better, worse string) string {
	if factor < 1 {
		return formatFactor(1/factor) + " " + worse
	}
	return formatFactor(factor) + " " + better
}

func formatFactor(factor float64) string {
	if factor < 10 {
		return fmt.Sprintf("%.1f×", factor)
	}
	return fmt.Sprintf("%.0f×", factor)
}

// shown formats a command line for the table, and truncates it.
func shown(argv []string) string {
	const width = 42
	var words []string
	for _, word := range argv {
		if strings.ContainsAny(word, " ;\"()") {
			word = "'" + word + "'"
		}
		words = append(words, word)
	}
	line := []rune(strings.Join(words, " "))
	if len(line) > width {
		line = append(line[:width-1], '…')
	}
	return string(line)
}
