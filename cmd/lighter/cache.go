package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node"
	"lighter/node/completion"
	"lighter/node/control"
	"lighter/node/imagecache"
	"lighter/store/disk"
	"lighter/wire"
)

func printCache(s disk.Stats) {
	if s.Absent == "" {
		fmt.Printf("cache %s of %s, %d chunks, %s pinned, %s evicted, %d hits, %d misses\n",
			size(s.Used), size(s.Limit), s.Chunks, size(s.Pinned), size(s.Evicted), s.Hits, s.Misses)
	}
	if s.Loading > 0 {
		fmt.Printf("      %s of it are not loaded yet; reads of them are fetched\n", size(s.Loading))
	}
	if s.External > 0 {
		fmt.Printf("      %s of it are local devices\n", size(s.External))
	}
	if s.Absent == "" && s.Room < s.Limit {
		fmt.Printf("      its disk has %s free, which limits the cache to %s\n", size(s.Free), size(s.Room))
	}
	if s.Damaged+s.Unread+s.Failed > 0 {
		fmt.Printf("      its disk returned %d damaged chunks, failed to read %d and to write %d\n", s.Damaged, s.Unread, s.Failed)
	}
	if s.Hung > 0 {
		fmt.Printf("      its disk left %d reads and writes unanswered\n", s.Hung)
	}
	if off := s.Off(); off != "" {
		fmt.Printf("cache off: %s\n", off)
	}
}

func printPins(pins []disk.Pin) error {
	if len(pins) == 0 {
		return nil
	}
	var rows [][]any
	for _, p := range pins {
		rows = append(rows, []any{p.Label, p.ID.Short(), size(p.Bytes), size(p.Here)})
	}
	return table(os.Stdout, "\nPINNED\tTREE\tSIZE\tCACHED", rows)
}

// cacheFlags are the flags of every command about the cache.
type cacheFlags struct {
	root string
	json bool
}

func (f *cacheFlags) control() *control.Client { return control.New(f.root) }

// show prints the state of the cache, or value as JSON.
func (f *cacheFlags) show(value any, s imagecache.Status) error {
	if f.json {
		return printJSON(os.Stdout, value)
	}
	printCache(s.Stats)
	return printPins(s.Pins)
}

// showFreed prints how much was evicted, then the state of the cache.
func (f *cacheFlags) showFreed(freed imagecache.Freed) error {
	if !f.json {
		fmt.Printf("freed %s, %d chunks\n", size(freed.Bytes), freed.Chunks)
		if len(freed.Pins) > 0 {
			fmt.Println("pinned chunks stay")
		}
		if freed.Kept > 0 {
			fmt.Printf("%s more are unused and go with their neighbours\n", size(freed.Kept))
		}
	}
	return f.show(freed, freed.Status)
}

func cacheCommand() *cobra.Command {
	var f cacheFlags
	cmd := &cobra.Command{
		Use:   "cache [flags]",
		Short: "Show the node's chunk cache, and what is pinned in it",
		Long: `Show the node's chunk cache, and what is pinned in it.

IMAGE is a name that "lighter status" shows: a reference or its end, a chain or a tree,
or the first digits of these.`,
		Example: "  lighter cache\n  lighter cache pin --fetch registry.example.org/tools/shell:1\n  lighter cache prune",
		Args:    command.Group,
	}
	cmd.PersistentFlags().StringVar(&f.root, "root", node.DefaultConfig().Root, "the node's `DIR`")
	cmd.PersistentFlags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := f.control().Cache(cmd.Context())
		if err != nil {
			return err
		}
		return f.show(s, s)
	}
	cmd.AddCommand(cachePin(&f), cacheUnpin(&f), cacheEvict(&f), cachePrune(&f), cacheScrub(&f))
	return cmd
}

func cachePin(f *cacheFlags) *cobra.Command {
	var fetch bool
	cmd := &cobra.Command{
		Use:   "pin [flags] IMAGE",
		Short: "Keep an image's chunks in the cache",
		Long: `Keep an image's chunks in the cache, also those that are fetched later. The pin holds
across restarts and after the image is removed, until "unpin". Pinned chunks may use
half of the cache.

--fetch fetches the missing chunks now, at a lower priority than containers' reads. An
interrupt ends the fetch; the pin stays.`,
		Example: "  lighter cache pin registry.example.org/tools/shell:1\n  lighter cache pin --fetch registry.example.org/tools/shell:1",
		Args:    command.Exactly("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := f.control().Pin(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if fetch {
				if err := fetchPinned(cmd.Context(), f.control(), args[0]); err != nil {
					return err
				}
				if s, err = f.control().Cache(cmd.Context()); err != nil {
					return err
				}
			}
			return f.show(s, s)
		},
	}
	cmd.Flags().BoolVar(&fetch, "fetch", false, "fetch the missing chunks")
	return cmd
}

func fetchPinned(ctx context.Context, control *control.Client, name string) error {
	p := newProgress()
	defer p.end()
	return control.Fetch(ctx, name, func(at completion.Progress) {
		if at.All > 0 {
			p.show(wire.Progress{Step: "fetch", Item: name, Bytes: at.Here, Total: at.All})
		}
	})
}

func cacheUnpin(f *cacheFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "unpin [flags] IMAGE",
		Short:   "Let the cache evict an image's chunks again",
		Example: "  lighter cache unpin registry.example.org/tools/shell:1",
		Args:    command.Exactly("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := f.control().Unpin(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return f.show(s, s)
		},
	}
}

func cacheEvict(f *cacheFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "evict [flags] IMAGE",
		Short: "Evict the chunks that only this image uses",
		Long: `Evict the chunks that only this image uses, of all images on this machine. Pinned chunks
stay. The image stays, too: its containers fetch again what they read.`,
		Example: "  lighter cache evict registry.example.org/tools/shell:1",
		Args:    command.Exactly("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			freed, err := f.control().Evict(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return f.showFreed(freed)
		},
	}
}

func cachePrune(f *cacheFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "prune [flags]",
		Short:   "Evict all chunks that are not pinned; containers fetch what they need again",
		Example: "  lighter cache prune",
		Args:    command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			freed, err := f.control().Prune(cmd.Context())
			if err != nil {
				return err
			}
			return f.showFreed(freed)
		},
	}
}

func cacheScrub(f *cacheFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "scrub [flags]",
		Short: "Verify all cached chunks on the disk",
		Long: `Verify all cached chunks on the disk, and evict damaged ones, which are fetched again
when they are needed. (Each read is verified in any case.)

Metadata images and local devices, which the kernel reads unverified, are verified,
too. "lighter status" names those that are damaged and in use.`,
		Example: "  lighter cache scrub",
		Args:    command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := f.control().Scrub(cmd.Context())
			if err != nil {
				return err
			}
			if !f.json {
				fmt.Printf("verified %s; %d chunks and %d metadata images and local devices were damaged\n", size(s.Found.Bytes), s.Found.Damaged, s.Files)
			}
			return f.show(s, s.Status)
		},
	}
}
