package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/wire"
	"lighter/wire/client"
)

func gcCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gc [flags]",
		Short: "Free what no image on a hub needs any more",
		Long: `Free the trees, layers and packs on a hub that no image needs any more, and the blobs of
its registry that need not be stored. The hub does so by itself every few hours (gc in its
configuration). This command makes it begin now, unless a collection is running already:
then --wait waits for that one.

The data of a removed image stays for a while (gc.delay_minutes), because a node may have
pulled the image just before. It also stays as long as nodes or mirrors have the image.
Blobs stay for a day after a client has last pushed, mounted or looked for them.

--dry-run lists the trees without an image, each with the name of the image that had it
last. It also shows the images that the retention rules of the hub would remove. The
rules are applied by another job, once a day ("lighter retention"). A dry run asks no other
registry. So the collection may keep some of the layers that the dry run counts: those
that no other registry has any more.`,
		Example: `  lighter gc --dry-run
  lighter gc --wait
  lighter gc --dry-run --json | jq .bytes`,
		Args: command.Exactly(),
	}
	dryRun := cmd.Flags().Bool("dry-run", false, "only print what would go, and why")
	wait := cmd.Flags().Bool("wait", false, "wait until the collection has ended, and print what it has freed")
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, _ []string) (collection, error) {
		if *dryRun {
			last, err := hub.PlanCollection(ctx)
			return collection{Collection: last.Collection}, err
		}
		job, err := hub.Collect(ctx)
		if err != nil || !*wait {
			return collection{Job: job.N}, err
		}
		last, err := watch(func(show func(wire.Progress)) (wire.Progress, error) {
			return hub.AwaitCollection(ctx, job.N, show)
		})
		return collection{Job: job.N, Collection: last.Collection}, err
	}, printCollection)
}

// collection is what a collection does or has done, and its job.
type collection struct {
	Job int64 `json:"job,omitempty"`
	*wire.Collection
}

func printCollection(c collection) error {
	if c.Collection == nil {
		fmt.Printf("job %d frees what no image needs (lighter jobs)\n", c.Job)
		return nil
	}
	if len(c.Images) > 0 {
		if err := printVerdicts(c.Images); err != nil {
			return err
		}
	}
	if len(c.Unserved) > 0 {
		rows := rowsOf(c.Unserved, func(u wire.Unserved) []any {
			since, what := "-", "stays"
			if !u.Since.IsZero() {
				since = humanize.Time(u.Since)
			}
			if u.Goes {
				what = "goes"
			}
			return []any{short(u.Tree), cmp.Or(u.Name, "-"), what, size(u.Bytes), since, u.Why}
		})
		if err := table(os.Stdout, "TREE\tLAST IMAGE\tTHEN\tBYTES\tWITHOUT IMAGE SINCE\tWHY", rows); err != nil {
			return err
		}
	}
	would := ""
	if c.DryRun {
		would = "would be "
	}
	fmt.Printf("%d trees, %d layers and %d packs (%s) %sfreed: %s\n", c.Trees, c.Layers, c.Packs, size(c.PackBytes),
		would, size(c.Bytes))
	if c.Rewritten > 0 {
		fmt.Printf("%s %srewritten without what is not needed; the old ones go later (gc.keep_minutes)\n",
			english.Plural(int(c.Rewritten), "pack", ""), would)
	}
	fmt.Printf("%s in other packs are not needed, but stay until a quarter of their pack is not needed\n",
		size(c.DeadBytes))
	fmt.Printf("%d blobs that nothing names and %d layers that need not be stored %sfreed in the registry: %s\n",
		c.Blobs, c.Released, would, size(c.BlobBytes))
	if c.DryRun && c.Released > 0 {
		fmt.Println("a layer stays if the registry that it came from does not have it any more; a dry run does not ask")
	}
	if c.Unrenewed > 0 {
		fmt.Printf("the packs of %d trees stay, because an object of each tree is lost or damaged: "+
			"run lighter fsck --deep --repair\n", c.Unrenewed)
	}
	return nil
}
