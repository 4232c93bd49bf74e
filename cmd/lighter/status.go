package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/durable"
	"lighter/node/binds"
	"lighter/node/control"
	"lighter/node/directory"
	"lighter/node/front/containerd/blobs"
	"lighter/node/report"
	"lighter/node/resolver"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [flags] [IMAGE]",
		Short: "Show what the node on this machine has mounted and fetched, and which images are lazy",
		Long: `Show what the node on this machine has mounted and fetched, and which images are lazy.
With IMAGE, show how many bytes of the image were read and received, from which hub or
mirror, how long readers waited, how much of the image is cached, and what uses it.
IMAGE is a reference or its end, a chain or a tree, or at least the first 6 digits of
these. (An image on which another one is built appears once its tree is on this machine.
It has no name if containerd did not give one: use its chain.)

For each mounted tree, MODE is file, loop (loop devices), or local (its newest mount
reads a local device, without the node). FAULTS counts the kernel's reads, READ their
bytes, and MISSED those bytes that were not cached. WAITED is the total waiting time of
readers, and 99 of 100 answers took at most P99. Received bytes are compressed, and some
of them were prefetched. Bytes that several images share count for the image that needed
them first. SOURCE is where an image comes from: hub, attached (an index in its registry),
tables (tables of contents in its layers), soci (a SOCI index), or pull: it was unpacked as
usual. WHY gives the reason, and what the sources said that were asked before.`,
		Example: `  lighter status
  lighter status physics/root:6.32
  lighter status --json | jq '.images[] | select(.lazy | not)'`,
		Args: command.AtLeast(0, "IMAGE"),
	}
	return nodeQuery(cmd, func(ctx context.Context, node *control.Client, args []string) (any, error) {
		if len(args) > 0 {
			return node.Images(ctx, args[0])
		}
		return node.Status(ctx)
	}, func(answer any) error {
		if images, ok := answer.([]report.ImageDetail); ok {
			return printImages(images)
		}
		return printStatus(answer.(report.Status))
	})
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
		fmt.Printf("devices kept by %s\n", s.Keeper.Name)
	}
	printHubs(s)
	printSigners(s.Signers)
	fmt.Printf("fetched %s in %d requests (%d repeated, %d with invalid answers)\n",
		size(s.Fetched.Bytes), s.Fetched.Requests, s.Fetched.Retries, s.Fetched.Invalid)
	if y := s.Ahead.Startup; y.Added > 0 {
		fmt.Printf("startup packs: %s fetched, %s of chunks, of which %s were read\n",
			size(y.Fetched), size(y.Added), size(y.Used))
	}
	printCache(s.Cache)
	printRecording(s.Recording)
	printBlobs(s.Blobs)
	if d := s.Direct; d.Trees+d.Waiting > 0 {
		fmt.Printf("images without a hub: %d trees, of which %d have layers that are not verified yet, and %d are "+
			"wrong and not mounted; %d other images wait until their layers are verified\n", d.Trees, d.Unverified,
			d.Wrong, d.Waiting)
	}
	if s.Direct.Failed != "" {
		fmt.Printf("layers cannot be verified now: %s\n", s.Direct.Failed)
	}
	if s.NoMetrics != "" {
		fmt.Printf("metrics, health and readiness are not served: %s\n", s.NoMetrics)
	}
	if s.NotLazy != "" {
		fmt.Printf("no image is lazy: %s\n", s.NotLazy)
	}
	return printTables(s)
}

// printTables prints the tables of mounts, images, broken trees, refused statements and leftovers.
func printTables(s report.Status) error {
	return errors.Join(
		section("MOUNTED\tMODE\tFILES\tSIZE\tFAULTS\tREAD\tMISSED\tWAITED\tP99\tCHAINS", s.Mounts, mountRow),
		section("IMAGE\tCHAIN\tSTATE\tSOURCE\tWHY", s.Images, func(i report.ImageStatus) []any {
			return []any{cmp.Or(i.Image, "-"), short(i.Chain), laziness(i), cmp.Or(i.Source.Source, "-"), i.Why}
		}),
		section("MOUNTED AT\tIMAGE\tCHAIN\tSTATE", s.Binds, func(b binds.Bind) []any {
			state := "mounted"
			if b.Lost != "" {
				state = "not mounted again: " + b.Lost
			}
			return []any{b.Dir, b.Name, short(b.Chain), state}
		}),
		printDirectory(s.Directory),
		printImageStore(s.ImageStore),
		section("BROKEN TREE\tIMAGES\tCHAINS\tCAUSE", s.Lost, func(l report.Lost) []any {
			return []any{l.Tree.Short(), cmp.Or(strings.Join(l.Images, " "), "-"), shortAll(l.Chains), l.Cause}
		}),
		printRefused(s.Refused),
		section("NOT CLEANED UP\tCAUSE", s.Leftovers, func(l durable.Leftover) []any { return []any{l.Path, l.Cause} }),
	)
}

// printDirectory prints the state of the directory of images, and the images in it that this node
// has.
func printDirectory(s *directory.Status) error {
	if s == nil {
		return nil
	}
	switch {
	case s.Hidden != "":
		fmt.Printf("directory of images %s is not shown: %s\n", s.Dir, s.Hidden)
	case s.Away != "":
		fmt.Printf("directory of images %s shows what is known: %s\n", s.Dir, s.Away)
	default:
		fmt.Printf("directory of images %s: %s\n", s.Dir, english.Plural(s.Names, "image", ""))
	}
	return section("IN DIRECTORY\tCHAIN\tSTATE\tUSED", s.Images, directoryRow)
}

func directoryRow(i directory.ImageStatus) []any {
	state := "not mounted"
	if i.Mounted {
		state = "mounted"
	}
	return []any{i.Name, short(i.Chain), state, i.Used.Local().Format(time.DateTime)}
}

// printImageStore prints the state of the additional image store, and which of its trees are
// mounted.
func printImageStore(s *report.ImageStore) error {
	if s == nil {
		return nil
	}
	gone := ""
	if s.Gone > 0 {
		gone = fmt.Sprintf(" (%d not on the hubs any more)", s.Gone)
	}
	fmt.Printf("image store %s: %s%s, %s\n", s.Dir, english.Plural(s.Images, "image", ""), gone,
		english.Plural(s.Layers, "layer", ""))
	if s.Failed != "" {
		fmt.Printf("image store %s lacks %s: %s\n", s.Dir, english.Plural(s.Skipped, "image", ""), s.Failed)
	}
	if s.Trees == nil {
		return nil
	}
	if s.Trees.Hidden != "" {
		fmt.Printf("image store %s cannot start images: %s\n", s.Dir, s.Trees.Hidden)
	}
	images := slices.Clone(s.Trees.Images)
	for n := range images { // a mapping of owners and a digest
		images[n].Name, _, _ = strings.Cut(images[n].Name, "/")
	}
	return section("IN IMAGE STORE\tCHAIN\tSTATE\tUSED", images, directoryRow)
}

// printBlobs prints the state of the layers that containerd has not downloaded.
func printBlobs(s *blobs.Status) {
	if s == nil {
		return
	}
	fmt.Printf("layers of lazy images in containerd (%s): %d not fetched, %d fetched since the start (%s), "+
		"%d failures\n", strings.Join(s.Namespaces, ", "), s.Links, s.Fetched, size(s.Bytes), s.Failures)
	if s.Unknown > 0 {
		fmt.Printf("layers that containerd lacks, and no hub has: %d\n", s.Unknown)
	}
	if s.Failure != "" {
		fmt.Printf("last failure to fetch a layer: %s\n", s.Failure)
	}
	if s.Problem != "" {
		fmt.Printf("containerd does not get the layers of new images: %s\n", s.Problem)
	}
}

func mountRow(m report.MountStatus) []any {
	d := m.Device
	return []any{m.Tree.Short(), modeOf(m), m.Files, size(m.Bytes), d.Faults, size(d.Bytes), size(d.Missed),
		seconds(d.Waited.Total), seconds(d.Waited.P99), shortAll(m.Chains)}
}

// printRefused prints the refused statements, and below the table how to repair them.
func printRefused(refused []report.Refused) error {
	var repairs []string
	err := section("REFUSED STATEMENT\tIMAGES\tTREES\tCAUSE", refused, func(r report.Refused) []any {
		if !slices.Contains(repairs, r.Repair) {
			repairs = append(repairs, r.Repair)
		}
		var trees []string
		for _, tree := range r.Trees {
			trees = append(trees, tree.Short())
		}
		if r.Hub != "" {
			r.Cause += "; no hub gives another statement: " + r.Hub
		}
		return []any{short(r.Chain), cmp.Or(strings.Join(r.Images, " "), "-"), strings.Join(trees, " "), r.Cause}
	})
	for _, repair := range repairs {
		fmt.Printf("what to do: %s\n", repair)
	}
	return err
}

// printSigners prints the number of statements that each key has signed. With one key it prints
// nothing: the figures are for a replacement of the key.
func printSigners(signers []resolver.Signer) {
	if len(signers) < 2 {
		return
	}
	for _, s := range signers {
		fmt.Printf("key %s: %s signed, %d not %s\n", s.Key, english.Plural(s.Signed, "statement", ""),
			len(s.Missing), shortAll(s.Missing))
	}
}

func printRecording(r report.Recording) {
	if !r.On && r.Recorded == 0 {
		fmt.Println("starts are not recorded")
		return
	}
	fmt.Printf("%d starts recorded, %d reported, %d dropped; %d are being recorded\n",
		r.Recorded, r.Reported, r.Dropped, r.Active)
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

func printImages(images []report.ImageDetail) error {
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

// details are the rows about one image. A key stands only in the first row of its values.
type details [][]any

func (rows *details) add(key string, values ...string) {
	for _, value := range values {
		*rows = append(*rows, []any{key, value})
		key = ""
	}
}

// addIf adds a row if its value is not empty.
func (rows *details) addIf(key, value string) {
	if value != "" {
		rows.add(key, value)
	}
}

func printImage(d report.ImageDetail) error {
	rows := &details{}
	rows.add(laziness(d.ImageStatus), d.Why)
	rows.addIf("source", strings.TrimSpace(d.Source.Source+" "+d.From))
	rows.add("chain", d.Chain)
	if !d.Tree.IsZero() {
		rows.add("tree", d.Tree.String())
		c := d.Content
		rows.add("cached", fmt.Sprintf("%s of %s (%d of %d chunks)",
			size(c.CachedBytes), size(c.Bytes), c.CachedChunks, c.Chunks))
	}
	if d.Local > 0 {
		kept := "it is evicted when the cache needs room"
		if d.Mount != nil && d.Mount.Local {
			kept = "it is mounted, and stays as long as the image"
		}
		rows.add("local", size(d.Local)+" in a file that new mounts read without the node; "+kept)
	}
	rows.addIf("completion", d.Completes)
	if d.Pin != nil {
		rows.add("pinned", fmt.Sprintf("%s, of which %s are cached", size(d.Pin.Bytes), size(d.Pin.Cached)))
	}
	rows.addIf("cache off", d.NoCache)
	rows.addIf("broken", d.Lost)
	if d.Refused != "" {
		rows.add("refused", "its statement: "+d.Refused)
	}
	if d.Mount != nil {
		rows.addMount(*d.Mount)
	}
	rows.add("snapshots", d.Snapshots...)
	var dirs []string
	for _, b := range d.Binds {
		if b.Lost != "" {
			b.Dir += " (not mounted again: " + b.Lost + ")"
		}
		dirs = append(dirs, b.Dir)
	}
	rows.add("mounted at", dirs...)
	return table(os.Stdout, cmp.Or(d.Image, d.Chain), *rows)
}

// addMount adds what containers have read of a mounted image.
func (rows *details) addMount(m report.MountStatus) {
	d := m.Device
	rows.add("mounted", fmt.Sprintf("%s (%d files, %s, mode %s)", m.Dir, m.Files, size(m.Bytes), modeOf(m)))
	faults := fmt.Sprintf("%d, of which %d waited for the network and %d failed", d.Faults, d.Waited.Fetched, d.Failed)
	if d.Refused > 0 {
		faults += fmt.Sprintf(", %d of them because too many were waiting", d.Refused)
	}
	rows.add("faults", faults)
	rows.add("read", fmt.Sprintf("%s: %s from the cache, %s fetched",
		size(d.Bytes), size(d.Bytes-d.Missed), size(d.Missed)))
	var received []string
	for _, origin := range slices.Sorted(maps.Keys(d.Received)) {
		received = append(received, fmt.Sprintf("%s from %s", size(d.Received[origin]), origin))
	}
	rows.add("received", received...)
	rows.add("waited", fmt.Sprintf("%s in all, half of the answers within %s, 99 of 100 within %s, the longest %s",
		seconds(d.Waited.Total), seconds(d.Waited.P50), seconds(d.Waited.P99), seconds(d.Waited.Max)))
}

func printHubs(s report.Status) {
	for _, h := range s.Hubs {
		state := "up"
		if !h.Up {
			state = fmt.Sprintf("down since %s: %s", h.Since.Local().Format(time.DateTime), h.Error)
		}
		fmt.Printf("hub %s %s, %d requests, %d failed, %s received\n",
			h.URL, state, h.Requests, h.Failures, size(h.Bytes))
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
