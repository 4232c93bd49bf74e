package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/wire"
	"lighter/wire/client"
)

func fsckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fsck [flags]",
		Short: "Compare a hub's stores with each other, and repair them",
		Long: `Compare a hub's bucket with its catalog, both ways, look for the blobs of all images in its
registry, and check the catalog itself. Everything else goes on meanwhile. With --deep, read
every object and blob and compare it with its digest, which takes as long as reading the disk.

With --repair, delete objects that are at least a day old and that the catalog does not
know, and make lost or damaged objects again: chunks and layer records from the images'
blobs, indexes and locations from layer records. With --repair --deep, also delete damaged
blobs, so that they can be pushed again or are read from the registry that the image was
added from. If an object cannot be made again, the command names its images and a remedy.
A name whose manifest the registry does not have is removed. If that would remove most names,
no name is removed, because the registry's files may be missing: put the files back, or add
--confirm.

The comparison is a job of the hub (lighter jobs), which goes on if the command ends. The exit
code is 0 if no problem is left, and 3 otherwise. "lighter verify" reads one image end to end.`,
		Example: `  lighter fsck
  lighter fsck --deep --repair
  lighter fsck --json | jq '.findings[].images'`,
		Args: command.Exactly(),
	}
	var w wire.Fsck
	cmd.Flags().BoolVar(&w.Repair, "repair", false, "delete unknown objects, and make lost ones again")
	cmd.Flags().BoolVar(&w.Deep, "deep", false, "read every object")
	cmd.Flags().BoolVar(&w.Confirm, "confirm", false,
		"with --repair: remove names without a manifest, even if these are most names")
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, _ []string) (fsckResult, error) {
		last, err := watch(func(show func(wire.Progress)) (wire.Progress, error) {
			return hub.Fsck(ctx, w, func(step wire.Progress) {
				if step.Step != "compare" { // its numbers are not bytes
					show(step)
				}
			})
		})
		if err == nil && last.Check == nil {
			err = fmt.Errorf("compare the hub's stores: %s did not answer with a result", hub.URL())
		}
		if err != nil {
			return fsckResult{}, err
		}
		return fsckResult{*last.Check}, nil
	}, printCheck)
}

// fsckResult is the result of a comparison.
type fsckResult struct{ wire.Check }

// Err returns an error if problems are left.
func (r fsckResult) Err() error {
	if n := r.Left(); n > 0 {
		return fmt.Errorf("%w: %d", errProblems, n)
	}
	return nil
}

func printCheck(r fsckResult) error {
	for _, f := range r.Findings {
		repaired := ""
		if f.Repaired > 0 {
			repaired = fmt.Sprintf(", %d of them repaired", f.Repaired)
		}
		fmt.Printf("%s: %d%s\n", f.Problem, f.Count, repaired)
		for _, example := range f.Examples {
			fmt.Printf("  %s\n", strings.ReplaceAll(example, "\n", "; "))
		}
		if len(f.Images) > 0 {
			fmt.Printf("  images: %s\n", strings.Join(f.Images, " "))
		}
		if f.Remedy != "" {
			fmt.Printf("  remedy: %s\n", f.Remedy)
		}
	}
	if r.Bytes > 0 {
		fmt.Printf("%s of objects read\n", size(r.Bytes))
	}
	fmt.Printf("%d objects and %d blobs compared, %s left\n", r.Objects, r.Blobs,
		english.Plural(int(r.Left()), "problem", ""))
	return nil
}
