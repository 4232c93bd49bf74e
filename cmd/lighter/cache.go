package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
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
		fmt.Printf("      %s of it are not loaded yet after the restart; chunks in that part are fetched again\n",
			size(s.Loading))
	}
	if s.External > 0 {
		fmt.Printf("      %s of it are local devices\n", size(s.External))
	}
	if s.Absent == "" && s.Room < s.Limit {
		fmt.Printf("      its disk has %s free, which limits the cache to %s\n", size(s.Free), size(s.Room))
	}
	if s.Damaged+s.Unread+s.Failed > 0 {
		fmt.Printf("      its disk returned %d damaged chunks, failed to read %d and to write %d\n",
			s.Damaged, s.Unread, s.Failed)
	}
	if s.Hung > 0 {
		fmt.Printf("      its disk left %d reads and writes unanswered\n", s.Hung)
	}
	if off := s.Off(); off != "" {
		fmt.Printf("cache off: %s\n", off)
	}
}

// printCacheStatus prints the state of the cache and its pins.
func printCacheStatus(s imagecache.Status) error {
	printCache(s.Stats)
	return section("PINNED\tTREE\tSIZE\tCACHED", s.Pins, func(p disk.Pin) []any {
		return []any{p.Label, p.ID.Short(), size(p.Bytes), size(p.Cached)}
	})
}

// printFreed prints how much was evicted, then the state of the cache.
func printFreed(freed imagecache.Freed) error {
	fmt.Printf("freed %s, %d chunks\n", size(freed.Bytes), freed.Chunks)
	if len(freed.Pins) > 0 {
		fmt.Println("pinned chunks stay")
	}
	if freed.Kept > 0 {
		fmt.Printf("%s more belong to evicted chunks; they are freed with the other chunks of the same files\n",
			size(freed.Kept))
	}
	return printCacheStatus(freed.Status)
}

func cacheCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache [flags]",
		Short: "Show the node's chunk cache, and what is pinned in it",
		Long: `Show the node's chunk cache, and what is pinned in it.

IMAGE is a name that "lighter status" shows: a reference or its end, a chain or a tree,
or the first digits of these.`,
		Example: `  lighter cache
  lighter cache pin --fetch registry.example.org/tools/shell:1
  lighter cache prune`,
		Args: command.Group,
	}
	cmd.AddCommand(cachePin(), cacheUnpin(), cacheEvict(), cachePrune(), cacheScrub())
	return nodeQuery(cmd, func(ctx context.Context, node *control.Client, _ []string) (imagecache.Status, error) {
		return node.Cache(ctx)
	}, printCacheStatus)
}

func cachePin() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pin [flags] IMAGE",
		Short: "Keep an image's chunks in the cache",
		Long: `Keep an image's chunks in the cache, also those that are fetched later. The pin lasts
across restarts and after the image is removed, until "unpin". Pinned chunks may use
half of what local devices leave of the cache.

--fetch fetches the missing chunks now, at a lower priority than containers' reads. An
interrupt ends the fetch; the pin stays.`,
		Example: `  lighter cache pin registry.example.org/tools/shell:1
  lighter cache pin --fetch registry.example.org/tools/shell:1`,
		Args: command.Exactly("IMAGE"),
	}
	fetch := cmd.Flags().Bool("fetch", false, "fetch the missing chunks")
	return nodeQuery(cmd, func(ctx context.Context, node *control.Client, args []string) (imagecache.Status, error) {
		s, err := node.Pin(ctx, args[0])
		if err != nil || !*fetch {
			return s, err
		}
		if err := fetchPinned(ctx, node, args[0]); err != nil {
			return s, err
		}
		return node.Cache(ctx)
	}, printCacheStatus)
}

func fetchPinned(ctx context.Context, node *control.Client, name string) error {
	p := newProgress()
	defer p.end()
	return node.Fetch(ctx, name, func(at completion.Progress) {
		if at.All > 0 {
			p.show(wire.Progress{Step: "fetch", Item: name, Bytes: at.Cached, Total: at.All})
		}
	})
}

func cacheUnpin() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "unpin [flags] IMAGE",
		Short:   "Let the cache evict an image's chunks again",
		Example: "  lighter cache unpin registry.example.org/tools/shell:1",
		Args:    command.Exactly("IMAGE"),
	}
	return nodeQuery(cmd, func(ctx context.Context, node *control.Client, args []string) (imagecache.Status, error) {
		return node.Unpin(ctx, args[0])
	}, printCacheStatus)
}

func cacheEvict() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "evict [flags] IMAGE",
		Short: "Evict the chunks that only this image uses",
		Long: `Evict the chunks of this image that no other image on this machine uses, and remove
its local device unless that is mounted. Pinned chunks stay. The image stays, too: its
containers fetch again what they read.`,
		Example: "  lighter cache evict registry.example.org/tools/shell:1",
		Args:    command.Exactly("IMAGE"),
	}
	return nodeQuery(cmd, func(ctx context.Context, node *control.Client, args []string) (imagecache.Freed, error) {
		return node.Evict(ctx, args[0])
	}, printFreed)
}

func cachePrune() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Evict all chunks that are not pinned; containers fetch what they need again",
		Long: `Evict all chunks that are not pinned, and remove all local devices that are not
mounted. Containers fetch what they need again.`,
		Example: "  lighter cache prune",
		Args:    command.Exactly(),
	}
	return nodeQuery(cmd, func(ctx context.Context, node *control.Client, _ []string) (imagecache.Freed, error) {
		return node.Prune(ctx)
	}, printFreed)
}

func cacheScrub() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scrub [flags]",
		Short: "Verify all cached chunks on the disk",
		Long: `Verify all cached chunks on the disk, and evict damaged ones, which are fetched again
when they are needed. (A read of a cached chunk is verified in any case.)

Local devices and the metadata images of served images are verified, too: the kernel
reads them unverified. Damaged local devices are removed. "lighter status" names what is
damaged and in use.`,
		Example: "  lighter cache scrub",
		Args:    command.Exactly(),
	}
	return nodeQuery(cmd, func(ctx context.Context, node *control.Client, _ []string) (imagecache.Scrubbed, error) {
		return node.Scrub(ctx)
	}, func(s imagecache.Scrubbed) error {
		fmt.Printf("verified %s of chunks; %d chunks and %d metadata images and local devices were damaged\n",
			size(s.Found.Bytes), s.Found.Damaged, s.Files)
		return printCacheStatus(s.Status)
	})
}
