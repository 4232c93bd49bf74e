package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/format/trace"
	"lighter/wire"
	"lighter/wire/client"
)

func traceCommand() *cobra.Command {
	cmd := group("trace", "Show, save, restore and remove what a hub knows about the starts of images",
		`Show, save, restore and remove what a hub knows about the starts of images.
Nodes report to their hub what starts of containers have read. The hub groups starts that
read nearly the same into workloads, and puts what they share into startup packs, which
nodes prefetch. This happens by itself. A report does not say what ran, or where.`,
		"  lighter trace show physics/root:6.32\n  lighter trace export physics/root:6.32 >root.trace")
	cmd.AddCommand(traceShowCommand(), traceRecordCommand(),
		traceExportCommand(), traceImportCommand(), traceRmCommand())
	return cmd
}

// platformFlag is the flag of the commands about traces that chooses one of several images.
func platformFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("platform", "", "use the image for this `OS/ARCH`, if the name has several")
}

func traceShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [flags] NAME",
		Short: "Show the workloads of an image, and its startup packs",
		Long: `Show the workloads of an image: the number of starts of each, how much they read, the
first file that they read, and the startup packs that hold their chunks. A pack is
fetched at each start, or when one of its triggers is read.`,
		Example: `  lighter trace show physics/root:6.32
  lighter trace show --json physics/root:6.32 | jq '.[0].workloads'`,
		Args: command.Exactly("NAME"),
	}
	platform := platformFlag(cmd)
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) ([]wire.Starts, error) {
		return hub.Starts(ctx, args[0], *platform)
	}, func(found []wire.Starts) error {
		for _, s := range found {
			if len(found) > 1 && len(s.Workloads) > 0 { // otherwise printStarts prints it
				fmt.Printf("%s %s\n", s.Name, s.Platform)
			}
			if err := printStarts(os.Stdout, s); err != nil {
				return err
			}
		}
		return nil
	})
}

func printStarts(w io.Writer, s wire.Starts) error {
	if len(s.Workloads) == 0 {
		fmt.Fprintf(w, "%s %s: no start has been reported yet\n", s.Name, s.Platform)
	} else {
		rows := rowsOf(s.Workloads, func(l wire.Workload) []any {
			return []any{l.ID, l.Starts, size(l.Bytes), l.Files, l.Ranges, packList(l.Packs), argument(l.First, 0)}
		})
		if err := table(w, "WORKLOAD\tSTARTS\tREADS\tFILES\tRANGES\tPACKS\tBEGINS WITH", rows); err != nil {
			return err
		}
	}
	if !s.Lost.IsZero() {
		fmt.Fprintf(w, "its startup packs were evicted at %s for lack of room (startup_bytes); "+
			"they are made again when it is pulled or started\n",
			s.Lost.Local().Format(time.DateTime))
	}
	var rows [][]any
	for i, p := range s.Packs {
		when := english.Plural(p.Triggers, "trigger", "")
		if p.AtMount {
			when = "each start"
		}
		rows = append(rows, []any{i, short(p.Pack), size(p.Bytes), p.Units, when})
	}
	return table(w, "PACK\tID\tSIZE\tUNITS\tFETCHED AT", rows)
}

func packList(packs []int) string {
	if len(packs) == 0 {
		return "-"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(packs), " ", ","), "[]")
}

func traceExportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export [flags] NAME",
		Short: "Print what a hub knows about the starts of an image",
		Long: `Print what a hub knows about the starts of an image: parts of files, by their paths, as
text. It also applies to other images with the same files.`,
		Example: `  lighter trace export physics/root:6.32 >root.trace
  lighter trace export physics/root:6.32 | lighter trace import --hub https://hub2.example.org physics/root:6.34 -`,
		Args: command.Exactly("NAME"),
	}
	platform := platformFlag(cmd)
	output := cmd.Flags().StringP("output", "o", "", "write to this `FILE` instead of standard output")
	return run(cmd, hubClient(cmd), func(ctx context.Context, hub *client.Client, args []string) error {
		text, err := hub.ExportTraces(ctx, args[0], *platform)
		if err != nil {
			return err
		}
		if *output != "" {
			return os.WriteFile(*output, text, 0o644)
		}
		_, err = os.Stdout.Write(text)
		return err
	})
}

func traceImportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import [flags] NAME FILE",
		Short: "Add exported recordings to those of an image",
		Long: `Add the output of "lighter trace export", of this image or another one, to what a hub
knows about the starts of an image. FILE may be - for standard input. It takes effect
some seconds later. Recordings that name no file of the image are dropped.`,
		Example: "  lighter trace import physics/root:6.34 root.trace",
		Args:    command.Exactly("NAME", "FILE"),
	}
	platform := platformFlag(cmd)
	return run(cmd, hubClient(cmd), func(ctx context.Context, hub *client.Client, args []string) error {
		text, err := readText(args[1])
		if err != nil {
			return command.Usage(fmt.Errorf("read the recordings: %w", err))
		}
		recordings, err := trace.ParseText(text)
		if err != nil {
			return command.Usage(fmt.Errorf("%s is no output of lighter trace export: %w", args[1], err))
		}
		if err := hub.ImportTraces(ctx, args[0], *platform, text); err != nil {
			return err
		}
		fmt.Printf("%s sent: the hub keeps those that apply to %s\n",
			english.Plural(len(recordings), "recording", ""), args[0])
		return nil
	})
}

func traceRmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm [flags] NAME [WORKLOAD]",
		Short: "Remove what a hub knows about the starts of an image: all workloads, or one",
		Long: `Remove a workload of an image by its ID, or the beginning of its ID, as "lighter trace
show" prints it. Without WORKLOAD, remove all workloads. Some seconds later the hub makes
new startup packs from the remaining workloads, or from a guess.

Later starts are recorded again. Newer images of the same repository have inherited the
workloads: remove them there, too. To restore workloads later, export them before.`,
		Example: `  lighter trace rm physics/root:6.32 3f1c
  lighter trace rm --json physics/root:6.32 | jq .workloads`,
		Args: command.AtLeast(1, "NAME", "WORKLOAD"),
	}
	platform := platformFlag(cmd)
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) (wire.Forgotten, error) {
		workload := argument(args, 1)
		if workload == "" && len(args) > 1 {
			return wire.Forgotten{}, command.Usage(errors.New("WORKLOAD is empty: leave it out to remove all"))
		}
		return hub.ForgetTraces(ctx, args[0], *platform, workload)
	}, func(f wire.Forgotten) error {
		fmt.Printf("removed %s of %s", english.Plural(len(f.Workloads), "workload", ""),
			english.Plural(int(f.Starts), "start", ""))
		if f.Waiting > 0 {
			fmt.Printf(", and %s that were not yet merged", english.Plural(int(f.Waiting), "trace", ""))
		}
		fmt.Println()
		return nil
	})
}

// readText reads a file of recordings, or - for standard input.
func readText(name string) ([]byte, error) {
	from := io.Reader(os.Stdin)
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		from = file
	}
	return io.ReadAll(io.LimitReader(from, trace.MaxText+1))
}
