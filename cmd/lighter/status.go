package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node"
	"lighter/node/control"
	"lighter/node/report"
	"lighter/node/resolver"
)

// rootFlag is the flag of every command that is a node's client.
func rootFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("root", node.DefaultConfig().Root, "the node's `DIR`")
}

func statusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [flags] [IMAGE]",
		Short: "Show what the node on this machine has mounted and fetched, and which images are lazy",
		Long: `Show what the node on this machine has mounted and fetched, and which images are lazy.
With IMAGE, show the bytes that it read and received, from which hub or mirror, how
long its readers waited, how much of it is cached, and what uses it. IMAGE is a
reference or its end, a chain or a tree, or at least 6 first digits of these. (An image
on which another one is built appears once its tree is on this machine. It has no name
if containerd did not give one: use its chain.)

For each mounted tree, MODE is file, loop (loop devices), or local (its newest mount
reads a local device, without the node). FAULTS counts the kernel's reads, READ their
bytes, and MISSED those bytes that were not cached. WAITED is the total waiting time of
readers, and 99 of 100 answers took at most P99. Received bytes are compressed, and some
of them were prefetched. Bytes that several images share count for the image that needed
them first. An image that is not lazy was unpacked as usual; WHY gives the reason.`,
		Example: "  lighter status\n  lighter status physics/root:6.32\n  lighter status --json | jq '.images[] | select(.lazy | not)'",
		Args:    command.AtLeast(0, "IMAGE"),
	}
	root := rootFlag(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return showImages(cmd.Context(), *root, args[0], asJSON)
		}
		s, err := control.New(*root).Status(cmd.Context())
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(os.Stdout, s)
		}
		return printStatus(s)
	}
	return cmd
}

func printStatus(s report.Status) error {
	taken := ""
	if s.TakenOver {
		taken = ", devices taken over"
	}
	fmt.Printf("node %s, version %s, up %s%s\n", s.Root, s.Version, time.Since(s.Started).Round(time.Second), taken)
	if s.Keeper.Error != "" {
		fmt.Printf("no keeper holds the devices: if the node ends, containers get errors: %s\n", s.Keeper.Error)
	} else {
		fmt.Printf("devices kept by %s\n", s.Keeper.Who)
	}
	printHubs(s)
	printSigners(s.Signers)
	fmt.Printf("fetched %s in %d requests (%d again, %d invalid)\n", size(s.Fetched.Bytes), s.Fetched.Requests, s.Fetched.Retries, s.Fetched.Invalid)
	if y := s.Ahead.Startup; y.Brought > 0 {
		fmt.Printf("startup packs: %s fetched, %s of chunks, of which %s were read\n", size(y.Fetched), size(y.Brought), size(y.Used))
	}
	printCache(s.Cache)
	printRecording(s.Recording)
	if s.NoMetrics != "" {
		fmt.Printf("metrics, health and readiness are not served: %s\n", s.NoMetrics)
	}
	if s.NotLazy != "" {
		fmt.Printf("no image is lazy: %s\n", s.NotLazy)
	}
	var rows [][]any
	for _, m := range s.Mounts {
		rows = append(rows, []any{m.Tree.Short(), modeOf(m), m.Files, size(m.Bytes), m.Device.Faults, size(m.Device.Bytes), size(m.Device.Missed),
			seconds(m.Device.Waited.Total), seconds(m.Device.Waited.P99), shortAll(m.Chains)})
	}
	if err := tableOf(rows, "\nMOUNTED\tMODE\tFILES\tSIZE\tFAULTS\tREAD\tMISSED\tWAITED\tP99\tCHAINS"); err != nil {
		return err
	}
	rows = nil
	for _, image := range s.Images {
		rows = append(rows, []any{cmp.Or(image.Image, "-"), short(image.Chain), laziness(image), image.Why})
	}
	if err := tableOf(rows, "\nIMAGE\tCHAIN\tSTATE\tWHY"); err != nil {
		return err
	}
	rows = nil
	for _, b := range s.Binds {
		state := "mounted"
		if b.Lost != "" {
			state = "not brought back: " + b.Lost
		}
		rows = append(rows, []any{b.Dir, b.Name, short(b.Chain), state})
	}
	if err := tableOf(rows, "\nMOUNTED AT\tIMAGE\tCHAIN\tSTATE"); err != nil {
		return err
	}
	rows = nil
	for _, l := range s.Lost {
		rows = append(rows, []any{l.Tree.Short(), cmp.Or(strings.Join(l.Images, " "), "-"), shortAll(l.Chains), l.Cause})
	}
	if err := tableOf(rows, "\nBROKEN TREE\tIMAGES\tCHAINS\tCAUSE"); err != nil {
		return err
	}
	if err := printRefused(s.Refused); err != nil {
		return err
	}
	rows = nil
	for _, l := range s.Leftovers {
		rows = append(rows, []any{l.Path, l.Cause})
	}
	return tableOf(rows, "\nNOT CLEANED UP\tCAUSE")
}

// printRefused prints the refused statements, and below the table how to repair them.
func printRefused(refused []report.Refused) error {
	var rows [][]any
	var repairs []string
	for _, r := range refused {
		var trees []string
		for _, tree := range r.Trees {
			trees = append(trees, tree.Short())
		}
		cause := r.Cause
		if r.Hub != "" {
			cause += "; the hub gives no other one: " + r.Hub
		}
		rows = append(rows, []any{short(r.Chain), cmp.Or(strings.Join(r.Images, " "), "-"), cmp.Or(strings.Join(trees, " "), "-"), cause})
		if !slices.Contains(repairs, r.Repair) {
			repairs = append(repairs, r.Repair)
		}
	}
	if err := tableOf(rows, "\nREFUSED STATEMENT\tIMAGES\tTREES\tCAUSE"); err != nil {
		return err
	}
	for _, what := range repairs {
		fmt.Printf("what to do: %s\n", what)
	}
	return nil
}

// printSigners prints the number of statements that each key has signed. With one key it prints
// nothing: the figures are for a replacement of the key.
func printSigners(signers []resolver.Signer) {
	if len(signers) < 2 {
		return
	}
	for _, s := range signers {
		fmt.Printf("key %s: %s signed, %d not %s\n", s.Key, english.Plural(s.Signed, "statement", ""), len(s.Missing), shortAll(s.Missing))
	}
}

func printRecording(r report.Recording) {
	if !r.On && r.Recorded == 0 {
		fmt.Println("starts are not recorded")
		return
	}
	fmt.Printf("%d starts recorded, %d reported, %d dropped; %d are being recorded\n", r.Recorded, r.Reported, r.Dropped, r.InWork)
}

// tableOf prints a table, unless it has no rows.
func tableOf(rows [][]any, header string) error {
	if len(rows) == 0 {
		return nil
	}
	return table(os.Stdout, header, rows)
}

// modeOf returns how the kernel reads a tree: file, loop or local.
func modeOf(m report.MountStatus) string {
	if m.Local {
		return "local"
	}
	return string(m.Mode)
}

func laziness(image report.ImageStatus) string {
	if image.Lazy {
		return "lazy"
	}
	return "not lazy"
}

// seconds formats a time in seconds.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

func showImages(ctx context.Context, root, word string, asJSON bool) error {
	images, err := control.New(root).Images(ctx, word)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(os.Stdout, images)
	}
	for i, image := range images {
		if i > 0 {
			fmt.Println()
		}
		if err := printImage(image); err != nil {
			return err
		}
	}
	return nil
}

func printImage(d report.ImageDetail) error {
	rows := [][]any{{laziness(d.ImageStatus), d.Why}, {"chain", d.Chain}}
	add := func(key string, values ...string) {
		for _, value := range values {
			rows = append(rows, []any{key, value})
			key = ""
		}
	}
	if !d.Tree.IsZero() {
		add("tree", d.Tree.String())
		c := d.Content
		add("cached", fmt.Sprintf("%s of %s (%d of %d chunks)", size(c.BytesHere), size(c.Bytes), c.ChunksHere, c.Chunks))
	}
	if d.Local > 0 {
		goes := "it is evicted when the cache needs room"
		if d.Mount != nil && d.Mount.Local {
			goes = "it is mounted, and stays as long as the image"
		}
		add("local", size(d.Local)+" in a file that new mounts read without the node; "+goes)
	}
	if d.Completes != "" {
		add("completion", d.Completes)
	}
	if d.Pin != nil {
		add("pinned", fmt.Sprintf("%s, of which %s are cached", size(d.Pin.Bytes), size(d.Pin.Here)))
	}
	if d.NoCache != "" {
		add("cache off", d.NoCache)
	}
	if d.Lost != "" {
		add("broken", d.Lost)
	}
	if d.Refused != "" {
		add("refused", "its statement: "+d.Refused)
	}
	if m := d.Mount; m != nil {
		v := m.Device
		add("mounted", fmt.Sprintf("%s (%d files, %s, mode %s)", m.Dir, m.Files, size(m.Bytes), modeOf(*m)))
		faults := fmt.Sprintf("%d, of which %d waited for a hub and %d failed", v.Faults, v.Waited.Fetched, v.Failed)
		if v.Refused > 0 {
			faults += fmt.Sprintf(", %d of them because too many were waiting", v.Refused)
		}
		add("faults", faults)
		add("read", fmt.Sprintf("%s: %s from the cache, %s fetched", size(v.Bytes), size(v.Bytes-v.Missed), size(v.Missed)))
		var received []string
		for _, origin := range slices.Sorted(maps.Keys(v.Received)) {
			received = append(received, fmt.Sprintf("%s from %s", size(v.Received[origin]), origin))
		}
		add("received", received...)
		add("waited", fmt.Sprintf("%s in all, half of the answers within %s, 99 of 100 within %s, the longest %s",
			seconds(v.Waited.Total), seconds(v.Waited.P50), seconds(v.Waited.P99), seconds(v.Waited.Max)))
	}
	add("snapshots", d.Snapshots...)
	for i, b := range d.Binds {
		at := b.Dir
		if b.Lost != "" {
			at += " (not brought back: " + b.Lost + ")"
		}
		add([]string{"mounted at", ""}[min(i, 1)], at)
	}
	return table(os.Stdout, cmp.Or(d.Image, d.Chain), rows)
}

func printHubs(s report.Status) {
	for _, h := range s.Hubs {
		state := "up"
		if !h.Up {
			state = fmt.Sprintf("down since %s: %s", h.Since.Local().Format(time.DateTime), h.Error)
		}
		fmt.Printf("hub %s %s, %d requests, %d failed, %s received\n", h.URL, state, h.Requests, h.Failures, size(h.Bytes))
	}
	fmt.Printf("trust %s (%s)\n", s.Trust.Trust, s.Trust.Why)
}

func shortAll(digests []string) string {
	out := make([]string, len(digests))
	for i, d := range digests {
		out[i] = short(d)
	}
	return strings.Join(out, " ")
}
