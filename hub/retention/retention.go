// Package retention decides which images a hub keeps, by rules that name repositories and tags. It
// is pure: it gets all images with their times, and returns what is to become of each, with the
// reason.
//
// Images that no rule is about stay. Images that are not ready, or that a list wants, stay, too. If
// the rules would remove more than a set share of a repository's images, no image of the repository
// is removed until an administrator confirms it.
package retention

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"lighter/wire/pattern"
)

// Rule says which images of some repositories are kept. The first rule with a pattern that matches
// a repository decides about it.
type Rule struct {
	Repositories []string `toml:"repositories" comment:"Patterns of names without tag, as lighter images shows them: registry.example.org/ci/*. * is any part of a name without /, ** any number of parts."`
	KeepTags     []Keep   `toml:"keep_tags" comment:"An image stays if one of these keeps its tag. If the list is empty, all tags stay."`
	UntaggedDays int64    `toml:"untagged_days" comment:"Images without a tag (NAME@sha256:...) go when they were neither pushed nor used for this many days. 0: they stay."`
}

// Keep says which tags stay. A tag that matches stays if one of the conditions holds, or if there
// is no condition.
type Keep struct {
	Patterns         []string `toml:"patterns" comment:"Patterns of tags: v*, [0-9]*. Empty: all tags."`
	Newest           int      `toml:"newest" comment:"Number of matching tags that stay, the most recently pushed or added first. 0: no condition."`
	PushedWithinDays int64    `toml:"pushed_within_days" comment:"Tags that were pushed or added within this many days stay. 0: no condition."`
	UsedWithinDays   int64    `toml:"used_within_days" comment:"A tag stays if its image became ready, or a node pulled, started or reported it, within this many days. 0: no condition."`
}

// Check returns a *RuleError if one of the rules is invalid.
func Check(rules []Rule) error {
	for i, r := range rules {
		if err := r.check(); err != nil {
			return &RuleError{Rule: i + 1, Err: err}
		}
	}
	return nil
}

// RuleError is an invalid rule.
type RuleError struct {
	Rule int // counted from 1
	Err  error
}

func (e *RuleError) Error() string { return fmt.Sprintf("retention rule %d: %v", e.Rule, e.Err) }
func (e *RuleError) Unwrap() error { return e.Err }

func (r Rule) check() error {
	if len(r.Repositories) == 0 {
		return errors.New(`repositories is empty: name some, or "**" for all`)
	}
	if len(r.KeepTags) == 0 && r.UntaggedDays == 0 {
		return errors.New("it removes nothing: add keep_tags or untagged_days, or omit the rule")
	}
	if r.UntaggedDays < 0 {
		return errors.New("untagged_days is below zero")
	}
	for _, p := range r.Repositories {
		if err := pattern.Check(p); err != nil {
			return fmt.Errorf("repositories: %w", err)
		}
	}
	for i, k := range r.KeepTags {
		if k.Newest < 0 || k.PushedWithinDays < 0 || k.UsedWithinDays < 0 {
			return fmt.Errorf("keep_tags %d: a number is below zero", i+1)
		}
		for _, p := range k.Patterns {
			if _, err := path.Match(p, ""); err != nil || p == "" {
				return fmt.Errorf("keep_tags %d: %q is no pattern: want TAG with *, ? and [a-z], such as v*", i+1, p)
			}
		}
	}
	return nil
}

// Image is a name in the hub, with its images for all platforms.
type Image struct {
	Name       string
	Repository string // Name without its tag or digest
	Tag        string // empty: the name has a digest
	Ready      bool   // all of its images are ready
	Pushed     time.Time
	Used       time.Time // when its tree was last used or published; zero: never
	Bytes      int64
	WantedBy   string // the list because of which the rules must not remove it; empty: none
}

// What becomes of an image.
const (
	Stays = "stays"
	Goes  = "goes"
	Waits = "waits" // it goes when an administrator has confirmed it
)

// Verdict is what becomes of an image, and why.
type Verdict struct {
	Image
	Then string // Stays, Goes, Waits
	Why  string
}

// Policy has the rules, and the share of a repository's images, in percent, that they may remove at
// a time without confirmation.
type Policy struct {
	Rules      []Rule
	MaxPercent int64
}

// Judge returns the verdict on each image, sorted by name. In the repositories in confirmed, the
// rules may remove any share of the images.
func (p Policy) Judge(images []Image, now time.Time, confirmed []string) []Verdict {
	byRepository := map[string][]Image{}
	for _, image := range images {
		byRepository[image.Repository] = append(byRepository[image.Repository], image)
	}
	var all []Verdict
	for repository, images := range byRepository {
		verdicts := p.judge(repository, images, now)
		if !slices.Contains(confirmed, repository) {
			p.stop(verdicts)
		}
		all = append(all, verdicts...)
	}
	slices.SortFunc(all, func(a, b Verdict) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// stop makes the images of a repository that would go wait, if they are too many.
func (p Policy) stop(verdicts []Verdict) {
	goes := 0
	for _, v := range verdicts {
		if v.Then == Goes {
			goes++
		}
	}
	if int64(goes)*100 <= p.MaxPercent*int64(len(verdicts)) {
		return
	}
	for i := range verdicts {
		if v := &verdicts[i]; v.Then == Goes {
			v.Then = Waits
			v.Why += fmt.Sprintf("; %d of %d images of %s would go, more than %d %%: confirm it with "+
				"`lighter retention run --confirm %s`, or change the rules",
				goes, len(verdicts), v.Repository, p.MaxPercent, v.Repository)
		}
	}
}

func (p Policy) judge(repository string, images []Image, now time.Time) []Verdict {
	verdicts := make([]Verdict, len(images))
	n := slices.IndexFunc(p.Rules, func(r Rule) bool { return r.isAbout(repository) })
	for i, image := range images {
		verdicts[i] = Verdict{Image: image, Then: Stays, Why: "no rule is about " + repository}
		if n >= 0 {
			verdicts[i].Then, verdicts[i].Why = p.Rules[n].judge(image, images, now)
			verdicts[i].Why = fmt.Sprintf("rule %d: %s", n+1, verdicts[i].Why)
		}
	}
	return verdicts
}

func (r Rule) isAbout(repository string) bool {
	return slices.ContainsFunc(r.Repositories, func(p string) bool { return pattern.Match(p, repository) })
}

// judge returns what becomes of one of a repository's images.
func (r Rule) judge(image Image, all []Image, now time.Time) (then, why string) {
	switch {
	case !image.Ready:
		return Stays, "it is not ready"
	case image.WantedBy != "":
		return Stays, "it is wanted by " + image.WantedBy
	case image.Tag == "" && r.UntaggedDays == 0:
		return Stays, "images without a tag stay"
	case image.Tag == "":
		if within(image.Pushed, r.UntaggedDays, now) || within(image.Used, r.UntaggedDays, now) {
			return Stays, fmt.Sprintf("it has no tag, and was pushed or used within %d days", r.UntaggedDays)
		}
		return Goes, fmt.Sprintf("it has no tag, and was neither pushed nor used within %d days", r.UntaggedDays)
	case len(r.KeepTags) == 0:
		return Stays, "all tags stay"
	}
	matches := false
	for i, k := range r.KeepTags {
		if !k.matches(image.Tag) {
			continue
		}
		matches = true
		if why := k.keeps(image, all, now); why != "" {
			return Stays, fmt.Sprintf("keep_tags %d: %s", i+1, why)
		}
	}
	if !matches {
		return Goes, "no keep_tags matches its tag"
	}
	return Goes, "no condition of keep_tags holds"
}

func (k Keep) matches(tag string) bool {
	return len(k.Patterns) == 0 || slices.ContainsFunc(k.Patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, tag)
		return err == nil && ok
	})
}

// keeps returns why k keeps an image whose tag it matches, or "" if it does not.
func (k Keep) keeps(image Image, all []Image, now time.Time) string {
	switch {
	case k.Newest == 0 && k.PushedWithinDays == 0 && k.UsedWithinDays == 0:
		return "its tag is protected"
	case k.Newest > 0 && k.newer(image, all) < k.Newest:
		return fmt.Sprintf("it is one of the newest %d", k.Newest)
	case within(image.Pushed, k.PushedWithinDays, now):
		return fmt.Sprintf("it was pushed within %d days", k.PushedWithinDays)
	case within(image.Used, k.UsedWithinDays, now):
		return fmt.Sprintf("it was used within %d days", k.UsedWithinDays)
	}
	return ""
}

// newer returns the number of ready images whose tags k matches and that are newer than image.
func (k Keep) newer(image Image, all []Image) (n int) {
	for _, other := range all {
		if other.Tag == "" || !other.Ready || !k.matches(other.Tag) {
			continue
		}
		if cmp.Or(other.Pushed.Compare(image.Pushed), cmp.Compare(other.Tag, image.Tag)) > 0 {
			n++
		}
	}
	return n
}

const day = 24 * time.Hour

func within(at time.Time, days int64, now time.Time) bool {
	return days > 0 && !at.IsZero() && int64(now.Sub(at)/day) < days // days*day may overflow
}
