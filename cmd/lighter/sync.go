package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/wire"
	"lighter/wire/client"
)

func syncCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sync [flags] HOST[:PORT][/PREFIX]",
		Short: "Have a hub keep the images of a whole registry",
		Long: `Have a hub keep the images of a whole registry, or of its repositories below PREFIX, as the
registry has them. Use it once to begin, and let the hub repeat it (--every), to find what
webhooks have missed.

The registry has to list its repositories (GET /v2/_catalog), or to be a Harbor. The hub reads it
with its own login, from a table [[registry]] of its configuration. The command waits until the
hub has looked at the images. They are fetched afterwards, after those that users add ("lighter
jobs").

The result is a wishlist with the name HOST/PREFIX: "lighter wishlist show" has its images and
problems. Without flags that define it, a list that the hub has stays as it is, and is read again.
With such flags, they replace all that it had.

In patterns of repositories, * matches within a part of a name, and ** any number of parts. In
patterns of tags, * matches any characters. An image has to match one pattern of each kind, and
no excluded one.

The command ends with exit code 3 if something could not be done, or waits for --confirm. The
rest is done.`,
		Example: `  lighter sync --dry-run registry.example.org/team
  lighter sync --tag 'v*' --exclude-repository 'team/ci/**' registry.example.org/team
  lighter sync registry.example.org/team
  lighter sync --remove registry.example.org/team`,
		Args: command.Exactly("HOST[/PREFIX]"),
	}
	f := cmd.Flags()
	name := f.String("name", "", "`NAME` of the list; the default is HOST/PREFIX")
	dryRun := f.Bool("dry-run", false, "say what would be added, and change nothing; moved tags are not found out")
	confirm := f.Bool("confirm", false, "let the list lose any share of its images")
	remove := f.Bool("remove", false, "remove the list; its images go unless somebody else wants them")
	defining := listFlags(cmd, 24*time.Hour)
	repositories := f.StringArray("repository", nil, "only repositories that match `PATTERN`; may be repeated")
	noRepositories := f.StringArray("exclude-repository", nil, "no repositories that match `PATTERN`; may be repeated")
	tags := f.StringArray("tag", nil, "only tags that match `PATTERN`; may be repeated")
	noTags := f.StringArray("exclude-tag", nil, "no tags that match `PATTERN`; may be repeated")
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) (wishlistOutcome, error) {
		w := defining()
		w.Registries, w.Repositories, w.ExcludeRepositories = args, *repositories, *noRepositories
		w.Tags, w.ExcludeTags = *tags, *noTags
		if w.Name = *name; w.Name == "" {
			w.Name = strings.ToLower(strings.TrimSuffix(args[0], "/"))
		}
		if *remove {
			if *dryRun || *confirm {
				return nil, command.Usage(errors.New("--remove goes with neither --dry-run nor --confirm"))
			}
			return nil, hub.RemoveWishlist(ctx, w.Name)
		}
		known, err := hasWishlist(ctx, hub, w.Name)
		if err != nil {
			return nil, err
		}
		isDefined := slices.ContainsFunc([]string{"repository", "exclude-repository", "tag", "exclude-tag", "every",
			"platform", "by-rules", "first", "source-plain-http"}, f.Changed)
		switch asItIs := known && !isDefined; {
		case *confirm && !asItIs:
			return nil, command.Usage(errors.New("--confirm is for a list that the hub has, and without flags that " +
				"define it"))
		case *dryRun && asItIs:
			return planned(ctx, hub, wire.Wishlist{Name: w.Name})
		case *dryRun:
			return planned(ctx, hub, w)
		case asItIs:
			return syncWishlist(ctx, hub, w.Name, *confirm)
		}
		return addWishlist(ctx, hub, w)
	}, printOutcome)
}

// planned returns what a hub would do with a list.
func planned(ctx context.Context, hub *client.Client, w wire.Wishlist) (wishlistOutcome, error) {
	last, err := watch(func(show func(wire.Progress)) (wire.Progress, error) { return hub.PlanWishlist(ctx, w, show) })
	return wishlistOutcome{{Name: w.Name, WishlistResult: last.Wishlist, isPlan: true}}, err
}

// hasWishlist reports whether a hub has the definition of a list.
func hasWishlist(ctx context.Context, hub *client.Client, name string) (bool, error) {
	states, err := hub.Wishlists(ctx)
	return slices.ContainsFunc(states, func(s wire.WishlistState) bool {
		return s.Name == name && definedIn(s) != "-"
	}), err
}
