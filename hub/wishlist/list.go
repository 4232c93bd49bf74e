// Package wishlist keeps the images that lists name: DUCC's wishlists as they are, lists in the
// hub's configuration, and whole registries.
//
// A list is read at an interval, as a job. One reading is a pass (pass.go). Each line of a list
// names an image, or with * in the tag all tags that match. A list may also name a registry: then
// each repository that the registry lists counts as a line (registry.go). The package promises that
// each line that cannot be done is named with its number and the reason, and that all others are
// done.
//
// An image that no line names any more is dropped, and goes unless somebody else wants it (package
// wants). A pass that could not read a file, a URL, a list of tags or a list of repositories drops
// nothing. A pass that would drop more than a set share of the list's images drops nothing, either,
// until an administrator confirms it.
//
// A pass sends one HEAD request for each image that has not moved. It requests lists of tags only
// for lines with * and for repositories of whole registries. It fetches a URL only if it has
// changed.
//
// The package refuses lists that are larger than its bounds (limits.go). It reads URLs only at
// public addresses, unless the configuration allows their hosts (tables [[registry]]). * in a tag
// is no regular expression.
//
// Hazard: people who can change a list, or push to a registry that a list names, can fill the hub's
// disk. Only a quota bounds that.
//
// Hazard: a registry that lists fewer repositories than before, perhaps because the hub's login has
// lost rights there, looks like one that has lost them. Only the share protects their images.
//
// Hazard: the hub reads the registries of all lists with its own login. So people who may add lists
// can bring all images into the hub that the hub can read there.
package wishlist

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"

	"lighter/wire"
	"lighter/wire/pattern"
)

// List is a list, as a table of the hub's configuration or as users add it.
type List struct {
	Name   string   `toml:"name" comment:"Name of the list: lower-case letters, digits and ._-:/"`
	Domain string   `toml:"domain" comment:"Domain of the list's images. Lines about repositories of other domains are wrong. Empty: default."`
	File   string   `toml:"file" comment:"YAML file: input is a list of HOST/REPOSITORY[:TAG|@DIGEST], with * in tags. Wishlists of DUCC can be used as they are. A changed file is read again."`
	URLs   []string `toml:"urls" comment:"Where such files are: https://HOST/PATH. Hosts without a public address need a table [[registry]] with private = true."`
	Text   string   `toml:"-"`
	Images []string `toml:"images" comment:"Further images, as in a file."`

	Registries          []string `toml:"registries" comment:"Whole registries: HOST[:PORT], or HOST[:PORT]/PREFIX for the repositories below PREFIX. The registry has to list its repositories (GET /v2/_catalog), or to be a Harbor."`
	Repositories        []string `toml:"repositories" comment:"Patterns of the repositories of registries that are wanted, without the host: team/*, physics/**. Empty: all."`
	ExcludeRepositories []string `toml:"exclude_repositories" comment:"Patterns of repositories of registries that are not wanted."`
	Tags                []string `toml:"tags" comment:"Tags of registries that are wanted, with * for any characters. Empty: all."`
	ExcludeTags         []string `toml:"exclude_tags" comment:"Tags of registries that are not wanted, with *."`

	EveryMinutes int64    `toml:"every_minutes" comment:"Minutes between two looks, 5 to 10080. 0: only on request (lighter wishlist sync)."`
	First        bool     `toml:"first" comment:"Fetch the images of this list before those of other lists."`
	Platforms    []string `toml:"platforms" comment:"OS/ARCH of the images. Empty: platforms of the hub."`
	ByRules      bool     `toml:"by_rules" comment:"The retention rules may remove images of the list. They come back when their source has moved."`
	PlainHTTP    bool     `toml:"plain_http" comment:"Allow plain HTTP to the list's registries."`
}

// listName is what names of lists look like. They are part of URLs and of the keys of jobs.
var listName = regexp.MustCompile(`^[a-z0-9][a-z0-9._:/-]{0,199}$`)

const (
	minMinutes = 5
	// maxMinutes is less than the time for which ended jobs are kept: without the last job, a list
	// would be due at once.
	maxMinutes = 7 * 24 * 60
)

// Check returns an error if a list is invalid.
func (l List) Check() error {
	switch {
	case !listName.MatchString(l.Name):
		return fmt.Errorf("name %q: want lower-case letters, digits and ._-:/, 200 at most", l.Name)
	case l.isEmpty():
		return errors.New("it names nothing: set file, urls, images or registries")
	case l.File != "" && !filepath.IsAbs(l.File):
		return fmt.Errorf("file %q: want an absolute path", l.File)
	case l.EveryMinutes != 0 && (l.EveryMinutes < minMinutes || l.EveryMinutes > maxMinutes):
		return fmt.Errorf("every_minutes is %d: want %d to %d, or 0", l.EveryMinutes, minMinutes, maxMinutes)
	case len(l.Text) > maxText:
		return errTooLong
	case len(l.URLs) > maxURLs || len(l.Images) > maxLines:
		return fmt.Errorf("want at most %d urls and %d images", maxURLs, maxLines)
	}
	for _, u := range l.URLs {
		if err := checkURL(u); err != nil {
			return err
		}
	}
	for _, p := range l.Platforms {
		if err := wire.CheckPlatform(p); err != nil {
			return err
		}
	}
	return l.checkRegistries()
}

// isEmpty reports whether a list names nothing.
func (l List) isEmpty() bool {
	return l.File == "" && l.Text == "" && len(l.URLs) == 0 && len(l.Images) == 0 && len(l.Registries) == 0
}

// checkRegistries returns an error if one of the keys about whole registries is invalid.
func (l List) checkRegistries() error {
	if len(l.Registries) > maxURLs {
		return fmt.Errorf("want at most %d registries", maxURLs)
	}
	for _, text := range l.Registries {
		if _, _, err := parseRegistry(text); err != nil {
			return err
		}
	}
	filters := [][]string{l.Repositories, l.ExcludeRepositories, l.Tags, l.ExcludeTags}
	for i, filter := range filters {
		switch {
		case len(filter) > maxFilter:
			return fmt.Errorf("want at most %d patterns of repositories or tags", maxFilter)
		case len(filter) > 0 && len(l.Registries) == 0:
			return errors.New("patterns of repositories and tags are for registries: set registries")
		}
		for _, p := range filter {
			if i < 2 {
				if err := pattern.Check(p); err != nil {
					return err
				}
			} else if !tagPattern.MatchString(p) {
				return fmt.Errorf("%q is no pattern of tags: want letters, digits and _.-*", short(p))
			}
		}
	}
	return nil
}

// checkURL returns an error if a URL is none of a list. The error does not have the URL's query,
// which may hold a secret.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("urls: one of them is not a valid URL")
	case u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		return fmt.Errorf("urls: %s: want https://HOST/PATH", u.Redacted())
	case u.User != nil:
		return fmt.Errorf("urls: the URL of %s has a login: a list must not have one", u.Host)
	}
	return nil
}

// Check returns an error if one of the configured lists is invalid.
func Check(lists []List) error {
	seen := map[string]bool{}
	for i, l := range lists {
		err := l.Check()
		if err == nil && seen[l.DomainName()+" "+l.Name] {
			err = fmt.Errorf("the name %s is given twice", l.Name)
		}
		if err != nil {
			return fmt.Errorf("wishlist %d: %w", i+1, err)
		}
		seen[l.DomainName()+" "+l.Name] = true
	}
	return nil
}

// DomainName returns the name of the list's domain.
func (l List) DomainName() string {
	if l.Domain == "" {
		return wire.DefaultDomain
	}
	return l.Domain
}
