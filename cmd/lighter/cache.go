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
		fmt.Printf("      of it %s are not loaded yet: what is read of them is fetched\n", size(s.Loading))
	}
	if s.Beside > 0 {
		fmt.Printf("      of it %s are local devices\n", size(s.Beside))
	}
	if s.Absent == "" && s.Room < s.Limit {
		fmt.Printf("      of its disk %s are free, which leaves the cache %s\n", size(s.Free), size(s.Room))
	}
	if s.Damaged+s.Unread+s.Failed > 0 {
		fmt.Printf("      its disk gave %d chunks back wrong and %d not at all, and did not take %d\n", s.Damaged, s.Unread, s.Failed)
	}
	if s.Hung > 0 {
		fmt.Printf("      its disk did not answer %d reads and writes in time\n", s.Hung)
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
	return table(os.Stdout, "\nPINNED\tTREE\tSIZE\tHERE", rows)
}

// cacheFlags are the flags of every command about the cache.
type cacheFlags struct {
	root string
	json bool
}

func (f *cacheFlags) control() *control.Client { return control.New(f.root) }

// show prints how the cache is: as JSON all of value, if that is wanted.
func (f *cacheFlags) show(value any, s imagecache.Status) error {
	if f.json {
		return printJSON(os.Stdout, value)
	}
	printCache(s.Stats)
	return printPins(s.Pins)
}

// showFreed prints what went first.
func (f *cacheFlags) showFreed(freed imagecache.Freed) error {
	if !f.json {
		fmt.Printf("freed %s, %d chunks\n", size(freed.Bytes), freed.Chunks)
		if len(freed.Pins) > 0 {
			fmt.Println("what is pinned stays")
		}
		if freed.Kept > 0 {
			fmt.Printf("%s more are of no use and go with what lies around them\n", size(freed.Kept))
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

IMAGE is what "lighter status" shows: a reference or its end, a chain or a tree, or
the first digits of these.`,
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
		Long: `Keep an image's chunks in the cache, those that are there and those that come. The
pin holds across restarts, and also when the image is removed, until "unpin". All
pins may take half of the cache.

With --fetch what is not there yet is fetched now, behind what containers read. If
that is interrupted, the pin stays.`,
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
	cmd.Flags().BoolVar(&fetch, "fetch", false, "fetch what is not there")
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
		Short:   "Let an image's chunks go when room is needed",
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
		Short: "Free what only this image has of the cache",
		Long: `Free what only this image has of the cache, among the images on this machine. What is
pinned stays. The image stays too: what its containers read is fetched again.`,
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
		Short:   "Empty the cache of all that is not pinned; what containers need is fetched again",
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
		Short: "Verify all that is in the cache, on the disk",
		Long: `Verify all that is in the cache, on the disk, and drop what is damaged, which is
fetched again when it is needed. (What is read is always verified.)

The metadata images and local devices, which the kernel reads unverified, are
verified too: "lighter status" names those that are damaged while they are in use.`,
		Example: "  lighter cache scrub",
		Args:    command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := f.control().Scrub(cmd.Context())
			if err != nil {
				return err
			}
			if !f.json {
				fmt.Printf("verified %s, %d chunks and %d metadata images and local devices were damaged\n", size(s.Found.Bytes), s.Found.Damaged, s.Files)
			}
			return f.show(s, s.Status)
		},
	}
}
