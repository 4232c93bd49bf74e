package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lighter/node"
)

// rootFlag is the flag of every command that speaks to a node.
func rootFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("root", node.DefaultConfig().Root, "the node's `DIR`")
}

func statusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show what the node on this machine has mounted and fetched, and which images are lazy",
		Long: `Show what the node on this machine has mounted and fetched, and which images are lazy.

Of each mounted tree: FAULTS are the reads that the kernel asked for, READ their
bytes, MISSED those of them that were not on this machine. An image that is not
lazy was unpacked as usual; WHY says why, as long as the node remembers it.`,
		Example: "  lighter status\n  lighter status --json | jq '.images[] | select(.lazy | not)'",
		Args:    exactArgs(),
	}
	root := rootFlag(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := node.NewControl(*root).Status(cmd.Context())
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

func printStatus(s node.Status) error {
	fmt.Printf("node %s, up %s, hub %s\n", s.Root, time.Since(s.Started).Round(time.Second), s.Hub)
	fmt.Printf("fetched %s in %d requests (%d again, %d invalid)\n", size(s.Fetched.Bytes), s.Fetched.Requests, s.Fetched.Retries, s.Fetched.Invalid)
	printCache(s)
	var rows [][]any
	for _, m := range s.Mounts {
		rows = append(rows, []any{m.Tree.Short(), m.Files, size(m.Bytes), m.Device.Faults, size(m.Device.Bytes), size(m.Device.Missed), shortAll(m.Chains)})
	}
	if err := table(os.Stdout, "\nMOUNTED\tFILES\tSIZE\tFAULTS\tREAD\tMISSED\tCHAINS", rows); err != nil {
		return err
	}
	rows = nil
	for _, image := range s.Images {
		lazy := "lazy"
		if !image.Lazy {
			lazy = "not lazy"
		}
		rows = append(rows, []any{cmp.Or(image.Image, "-"), short(image.Chain), lazy, image.Why})
	}
	if err := table(os.Stdout, "\nIMAGE\tCHAIN\t\tWHY", rows); err != nil {
		return err
	}
	if len(s.Binds) == 0 {
		return nil
	}
	rows = nil
	for _, b := range s.Binds {
		rows = append(rows, []any{b.Dir, b.Name, short(b.Chain)})
	}
	return table(os.Stdout, "\nMOUNTED AT\tIMAGE\tCHAIN", rows)
}

func shortAll(digests []string) string {
	out := make([]string, len(digests))
	for i, d := range digests {
		out[i] = short(d)
	}
	return strings.Join(out, " ")
}

func printCache(s node.Status) {
	c := s.Cache
	fmt.Printf("cache %s of %s, %d chunks, %d hits, %d misses, %d damaged, %d failed writes\n",
		size(c.Used), size(c.Limit), c.Chunks, c.Hits, c.Misses, c.Damaged, c.Failed)
}

func cacheCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "cache [flags]",
		Short:   "Show, or empty, the node's chunk cache",
		Example: "  lighter cache\n  lighter cache prune",
		Args:    exactArgs(),
	}
	root := cmd.PersistentFlags().String("root", node.DefaultConfig().Root, "the node's `DIR`")
	cmd.PersistentFlags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := node.NewControl(*root).Status(cmd.Context())
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(os.Stdout, s.Cache)
		}
		printCache(s)
		return nil
	}
	cmd.AddCommand(&cobra.Command{
		Use:     "prune [flags]",
		Short:   "Empty the cache; what containers need is fetched again",
		Example: "  lighter cache prune",
		Args:    exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			stats, err := node.NewControl(*root).Prune(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(os.Stdout, stats)
			}
			printCache(node.Status{Cache: stats})
			return nil
		},
	})
	return cmd
}
