package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/wire"
	"lighter/wire/client"
)

func wishlistCommand() *cobra.Command {
	cmd := group("wishlist", "Have a hub keep the images of lists",
		`Have a hub keep the images that lists name, as their registries have them: new and moved tags
are fetched, and what no line names any more goes, unless somebody else wants it.

A list is a YAML file. Wishlists of DUCC can be used as they are:

  version: 1
  input:
    - https://registry.hub.docker.com/library/python:3.13
    - registry.example.org/physics/root:6.*

* in a tag matches any characters; all tags that match are wanted. Lists are also in the hub's
configuration ([[wishlist]]).`,
		`  lighter wishlist add --every 1h recipe.yaml
  lighter wishlist add --name physics https://git.example.org/lists/raw/physics.yaml
  lighter wishlist show physics
  lighter wishlist sync physics
  lighter wishlist remove physics`)
	cmd.AddCommand(wishlistAddCommand(), wishlistListCommand(), wishlistShowCommand(), wishlistSyncCommand(),
		wishlistRemoveCommand())
	return cmd
}

// errLines says that lines of a wishlist could not be done.
var errLines = errors.New("lines of a list could not be done")

// wishlistOutcome is what a hub has made of lists.
type wishlistOutcome []namedResult

type namedResult struct {
	Name string `json:"name"`
	*wire.WishlistResult
	isPlan bool // nothing was done
}

// Err returns an error if a line failed, or waits for a confirmation.
func (o wishlistOutcome) Err() error {
	for _, r := range o {
		switch {
		case r.WishlistResult == nil:
		case r.Failed > 0 && r.isPlan:
			return fmt.Errorf("%w: %d problems of %s; a dry run changes nothing", errLines, r.Failed, r.Name)
		case r.Failed > 0:
			return fmt.Errorf("%w: %d problems of list %s (lighter wishlist show %s); the rest is done", errLines,
				r.Failed, r.Name, r.Name)
		case r.Waiting > 0:
			return fmt.Errorf("%w: list %s has lost %d images: they stay until you confirm it (lighter wishlist sync "+
				"--confirm %s)", errLines, r.Name, r.Waiting, r.Name)
		}
	}
	return nil
}

func printOutcome(o wishlistOutcome) error {
	for _, r := range o {
		if r.WishlistResult == nil {
			continue
		}
		fmt.Printf("%s: %s\n", r.Name, summary(r.WishlistResult))
		printProblems(r.WishlistResult)
		printNew(r.WishlistResult)
	}
	return nil
}

// summary returns a result in a line.
func summary(r *wire.WishlistResult) string {
	text := fmt.Sprintf("%d images: %d to be fetched", r.Images, r.Fetched)
	if r.Seconds > 0 {
		text += " in about " + roughly(time.Duration(r.Seconds)*time.Second)
	}
	text += fmt.Sprintf(", %d unchanged", r.Unchanged)
	if r.Found > 0 {
		text = fmt.Sprintf("%d repositories, %s", r.Found, text)
	}
	for _, part := range []struct {
		n    int64
		what string
	}{{r.Dropped, "dropped"}, {r.Waiting, "wait for a confirmation"}, {r.Failed, "problems"}} {
		if part.n > 0 {
			text += fmt.Sprintf(", %d %s", part.n, part.what)
		}
	}
	return text
}

// roughly returns an estimated time in minutes, or in hours if it is long.
func roughly(d time.Duration) string {
	if d > 10*time.Hour {
		return fmt.Sprintf("%d hours", int64(d.Round(time.Hour)/time.Hour))
	}
	return fmt.Sprintf("%d min", max(1, int64(d.Round(time.Minute)/time.Minute)))
}

// printNew prints the names of images that would be added.
func printNew(r *wire.WishlistResult) {
	for i, name := range r.New {
		if i == shownNew {
			fmt.Printf("  and %d more (--json)\n", r.Fetched-shownNew)
			return
		}
		fmt.Println(" ", name)
	}
}

// These bound the problems and the names of images that a command prints; --json has more.
const (
	shownProblems = 100
	shownNew      = 100
)

func printProblems(r *wire.WishlistResult) {
	for _, note := range r.Notes {
		fmt.Println(" ", note)
	}
	for i, p := range r.Problems {
		if i == shownProblems {
			fmt.Printf("  and %d more (--json)\n", r.Failed-shownProblems)
			return
		}
		place := p.Of
		if p.Line > 0 {
			place = fmt.Sprintf("%s, line %d", p.Of, p.Line)
		}
		if p.Text != "" {
			place += ": " + p.Text
		}
		fmt.Printf("  %s: %s\n", place, p.Why)
	}
}

func wishlistAddCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add [flags] FILE|URL",
		Short: "Add a list, or change one, and wait until the hub has read it",
		Long: `Add a list, or change the list of that name, and wait until the hub has read it and looked at
its images. The images are fetched afterwards, one after the other ("lighter jobs").

FILE is on this machine; the hub gets its contents, so a changed file has to be added again. The
hub reads a URL at each interval.

The command ends with exit code 3 if lines could not be done. The rest is done.`,
		Example: `  lighter wishlist add --every 1h recipe.yaml
  lighter wishlist add --name physics --platform linux/amd64 https://git.example.org/physics.yaml`,
		Args: command.Exactly("FILE|URL"),
	}
	name := cmd.Flags().String("name", "", "`NAME` of the list; the default is the file's name")
	defining := listFlags(cmd, time.Hour)
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) (wishlistOutcome, error) {
		w := defining()
		w.Name = *name
		if strings.HasPrefix(args[0], "https://") || strings.HasPrefix(args[0], "http://") {
			w.URLs = args[:1]
		} else {
			b, err := os.ReadFile(args[0])
			if err != nil {
				return nil, command.Usage(err)
			}
			w.Text = string(b)
		}
		if w.Name == "" {
			w.Name = listNameOf(args[0])
		}
		return addWishlist(ctx, hub, w)
	}, printOutcome)
}

// listFlags gives cmd the flags about a list that do not say what it names, and returns a function
// that makes the list.
func listFlags(cmd *cobra.Command, interval time.Duration) func() wire.Wishlist {
	f := cmd.Flags()
	every := f.Duration("every", interval, "`INTERVAL` of looks, 5m to 168h; 0: only on request")
	platforms := f.StringSlice("platform", nil,
		"`OS/ARCH` of the images; may be repeated; the default is each platform in the hub's configuration")
	first := f.Bool("first", false, "fetch the images before those of other lists")
	byRules := f.Bool("by-rules", false, "let the retention rules remove images of the list")
	plainHTTP := f.Bool("source-plain-http", false, "allow plain HTTP to the list's registries")
	return func() wire.Wishlist {
		return wire.Wishlist{EveryMinutes: int64(*every / time.Minute), Platforms: *platforms, First: *first,
			ByRules: *byRules, PlainHTTP: *plainHTTP}
	}
}

// notInListName are the characters that names of lists do not have.
var notInListName = regexp.MustCompile(`[^a-z0-9._-]+`)

// listNameOf returns the default name of a list: that of its file, without the extension.
func listNameOf(place string) string {
	place, _, _ = strings.Cut(place, "?")
	base := filepath.Base(place)
	base = strings.TrimSuffix(strings.TrimSuffix(base, ".yaml"), ".yml")
	return strings.Trim(notInListName.ReplaceAllString(strings.ToLower(base), "-"), "-._")
}

// addWishlist adds a list, or changes it, and waits until the hub has read it.
func addWishlist(ctx context.Context, hub *client.Client, w wire.Wishlist) (wishlistOutcome, error) {
	job, err := hub.AddWishlist(ctx, w)
	if err != nil {
		return nil, err
	}
	return awaitWishlist(ctx, hub, job)
}

// syncWishlist makes a hub read a list, and waits for that.
func syncWishlist(ctx context.Context, hub *client.Client, name string, confirm bool) (wishlistOutcome, error) {
	job, err := hub.SyncWishlist(ctx, name, confirm)
	if err != nil {
		return nil, err
	}
	return awaitWishlist(ctx, hub, job)
}

// awaitWishlist waits until the job of a list has ended.
func awaitWishlist(ctx context.Context, hub *client.Client, job wire.Job) (wishlistOutcome, error) {
	last, err := watch(func(show func(wire.Progress)) (wire.Progress, error) {
		return hub.AwaitWishlist(ctx, job.N, show)
	})
	return wishlistOutcome{{Name: job.Key, WishlistResult: last.Wishlist}}, err
}

func wishlistListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List a hub's wishlists",
		Long: `List a hub's wishlists: those of its configuration, those that were added, and those that are
gone and whose images are still wanted.`,
		Example: "  lighter wishlist list\n  lighter wishlist list --json | jq '.[] | select(.last.failed > 0)'",
		Args:    command.Exactly(),
	}
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, _ []string) ([]wire.WishlistState, error) {
		return hub.Wishlists(ctx)
	}, func(states []wire.WishlistState) error {
		rows := rowsOf(states, func(s wire.WishlistState) []any {
			read, problems := "never", int64(0)
			if s.Last != nil {
				read, problems = humanize.Time(s.Last.At), s.Last.Failed
			}
			return []any{s.Name, definedIn(s), interval(s.EveryMinutes), s.Wanted, read, problems}
		})
		return table(os.Stdout, "NAME\tFROM\tEVERY\tWANTED\tREAD\tPROBLEMS", rows)
	})
}

// definedIn says where a list is defined.
func definedIn(s wire.WishlistState) string {
	switch {
	case s.Configured:
		return "configuration"
	case len(s.URLs) > 0:
		return "URL"
	case len(s.Registries) > 0:
		return "registry"
	case s.EveryMinutes == 0 && s.Last == nil:
		return "-"
	}
	return "added"
}

func interval(minutes int64) string {
	if minutes == 0 {
		return "-"
	}
	return strings.TrimSuffix((time.Duration(minutes) * time.Minute).String(), "0s")
}

func wishlistShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [flags] NAME",
		Short: "Show a wishlist with its images and problems",
		Long:  `Show a wishlist: its images, and the lines that could not be done when it was read last.`,
		Example: `  lighter wishlist show physics
  lighter wishlist show physics --json | jq -r '.last.problems[] | "\(.line) \(.why)"'`,
		Args: command.Exactly("NAME"),
	}
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) (wire.WishlistState, error) {
		return hub.Wishlist(ctx, args[0])
	}, func(s wire.WishlistState) error {
		for _, from := range slices.Concat(s.URLs, s.Registries) {
			fmt.Println("from", from)
		}
		for _, filter := range []struct {
			what     string
			patterns []string
		}{{"only repositories", s.Repositories}, {"no repositories", s.ExcludeRepositories}, {"only tags", s.Tags},
			{"no tags", s.ExcludeTags}} {
			if len(filter.patterns) > 0 {
				fmt.Println(filter.what, strings.Join(filter.patterns, " "))
			}
		}
		if s.Last != nil {
			fmt.Printf("read %s: %s\n", humanize.Time(s.Last.At), summary(s.Last))
			printProblems(s.Last)
		}
		return table(os.Stdout, "IMAGE\tDIGEST\tSINCE\tERROR", rowsOf(s.Wants, func(i wire.WishlistImage) []any {
			return []any{i.Name, short(i.Digest), humanize.Time(i.Since), i.Error}
		}))
	})
}

func wishlistSyncCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sync [flags] [NAME]",
		Short: "Have a hub read a wishlist now, or all of them, and wait for that",
		Long: `Have a hub read a wishlist now, or all of them, and wait until it has looked at the images.

If a list has lost more than retention_max_percent of its images, they stay: --confirm lets
them go. The command ends with exit code 3 if lines could not be done, or wait for this.`,
		Example: "  lighter wishlist sync\n  lighter wishlist sync --confirm physics",
		Args:    command.AtLeast(0, "NAME"),
	}
	confirm := cmd.Flags().Bool("confirm", false, "let the list lose any share of its images; needs NAME")
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) (wishlistOutcome, error) {
		names := args
		if len(names) == 0 {
			if *confirm {
				return nil, command.Usage(errors.New("--confirm needs the NAME of a list"))
			}
			states, err := hub.Wishlists(ctx)
			if err != nil {
				return nil, err
			}
			for _, s := range states {
				if definedIn(s) != "-" {
					names = append(names, s.Name)
				}
			}
		}
		var all wishlistOutcome
		for _, name := range names {
			one, err := syncWishlist(ctx, hub, name, *confirm)
			if err != nil {
				return all, err
			}
			all = append(all, one...)
		}
		return all, nil
	}, printOutcome)
}

func wishlistRemoveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove [flags] NAME",
		Short: "Remove a wishlist from a hub",
		Long: `Remove a wishlist from a hub. Its images go, unless another list, a hook or a person wants them.
A list of the hub's configuration is removed there; if its images are to go, too, remove it
here afterwards.`,
		Example: "  lighter wishlist remove physics",
		Args:    command.Exactly("NAME"),
	}
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) (struct{}, error) {
		return struct{}{}, hub.RemoveWishlist(ctx, args[0])
	}, func(struct{}) error { return nil })
}
