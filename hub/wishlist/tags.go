package wishlist

import (
	"context"
	"errors"
	"strings"

	"lighter/hub/pull"
	"lighter/sleep"
)

// listing is a repository whose tags are listed, for lines.
type listing struct {
	place
	lines []lineOf
}

// expandTags adds the images of lines with *. It lists the tags of each repository once.
func (p *pass) expandTags(ctx context.Context) {
	patterns := map[place][]lineOf{}
	for _, l := range p.lines {
		if at := (place{l.Repository, l.PlainHTTP}); l.isPattern() {
			patterns[at] = append(patterns[at], l)
		}
	}
	var all []listing
	for at, lines := range patterns {
		all = append(all, listing{at, lines})
	}
	p.listTags(ctx, all, false)
	if len(p.emptied) > 0 && sleep.For(ctx, p.config.Wants.Confirm) {
		p.listTags(ctx, p.emptied, true)
	}
}

// listTags adds the images of lines with *. If a registry lists a repository, and then answers that
// it is not there, it has no tags: some registries list repositories that have lost all tags.
// Images of the list are only dropped if the registry answers so again (confirmed).
func (p *pass) listTags(ctx context.Context, all []listing, confirmed bool) {
	step := p.progress.Step("list", p.list.Name, int64(len(all)))
	var mine map[string]bool
	if !confirmed {
		mine = p.repositories()
	}
	left := rounds(ctx, p.Rest, all, func(r listing) error {
		if p.full() {
			return nil
		}
		tags, err := p.tags(ctx, r.place)
		if isLater(err) {
			return err
		}
		step.Add(1)
		isGone := errors.Is(err, pull.ErrGone)
		for _, l := range r.lines {
			switch {
			case err == nil || l.found && isGone && (confirmed || !mine[r.repository]):
			case l.found && isGone:
				p.mu.Lock()
				p.emptied = append(p.emptied, listing{r.place, []lineOf{l}})
				p.mu.Unlock()
			default:
				p.lack(l, err)
			}
			for _, tag := range tags {
				if matchTag(l.Tag, tag) && (!l.found || p.list.wantsTag(tag)) {
					p.add(l, tag)
				}
			}
		}
		return nil
	})
	for _, r := range left {
		for _, l := range r.lines {
			p.lack(l, errors.New("its tags were not listed: its registry gets too many requests"))
		}
	}
}

// repositories returns the repositories of the images that the list wants.
func (p *pass) repositories() map[string]bool {
	all := map[string]bool{}
	for _, w := range p.have {
		if repository, _ := cutTag(strings.TrimPrefix(w.Source, "docker://")); !w.Dropped {
			all[repository] = true
		}
	}
	return all
}

func (p *pass) tags(ctx context.Context, at place) (tags []string, err error) {
	err = p.guard(at, func() error {
		from, err := p.source(ctx, at)
		if err == nil {
			tags, err = from.Tags(ctx, maxTags)
		}
		return err
	})
	return tags, err
}
