package wire

import "time"

// Wishlist names images of other registries, or whole registries. A hub keeps the images as these
// registries have them.
type Wishlist struct {
	Name   string   `json:"name"`
	Domain string   `json:"domain,omitempty"`
	File   string   `json:"file,omitempty"` // on the hub's machine; only in the hub's configuration
	URLs   []string `json:"urls,omitempty"`
	Text   string   `json:"text,omitempty"` // YAML, as in a file
	Images []string `json:"images,omitempty"`

	Registries          []string `json:"registries,omitempty"`          // HOST[:PORT][/PREFIX]
	Repositories        []string `json:"repositories,omitempty"`        // patterns of repositories of these; empty: all
	ExcludeRepositories []string `json:"excludeRepositories,omitempty"` // patterns of repositories that are not wanted
	Tags                []string `json:"tags,omitempty"`                // with *; empty: all
	ExcludeTags         []string `json:"excludeTags,omitempty"`

	EveryMinutes int64    `json:"everyMinutes,omitempty"` // 0: only on request
	First        bool     `json:"first,omitempty"`        // the images are fetched before those of other lists
	Platforms    []string `json:"platforms,omitempty"`
	ByRules      bool     `json:"byRules,omitempty"` // the retention rules may remove the images
	PlainHTTP    bool     `json:"plainHTTP,omitempty"`
}

// WishlistState is a wishlist with what the hub has made of it.
type WishlistState struct {
	Wishlist
	Configured bool            `json:"configured"`     // in the hub's configuration; otherwise users have added it
	Wanted     int64           `json:"wanted"`         // images
	Last       *WishlistResult `json:"last,omitempty"` // nil: it was not read yet
	// Of one list that was asked for:
	Wants []WishlistImage `json:"wants,omitempty"`
}

// WishlistImage is an image that a wishlist wants.
type WishlistImage struct {
	Name   string    `json:"name"`
	Source string    `json:"source"`
	Digest string    `json:"digest,omitempty"` // that the source had when the image was fetched last
	Error  string    `json:"error,omitempty"`  // why the last look at the source has failed
	Since  time.Time `json:"since"`
}

// WishlistResult says what a hub has made of a wishlist, when it read it last, or would make of it.
type WishlistResult struct {
	At        time.Time `json:"at"`
	Lines     int64     `json:"lines"`
	Found     int64     `json:"found,omitempty"` // repositories of whole registries, without those that are not wanted
	Images    int64     `json:"images"`          // that the lines name
	Fetched   int64     `json:"fetched"`         // new and moved ones, which were queued
	Unchanged int64     `json:"unchanged"`       // the hub has them as their source does
	Dropped   int64     `json:"dropped"`         // no line names them any more
	Waiting   int64     `json:"waiting"`         // no line names them, and there are so many that this has to be confirmed
	Complete  bool      `json:"complete"`        // all files, URLs and lists of tags could be read; otherwise nothing is dropped
	Failed    int64     `json:"failed"`          // number of problems
	// Seconds is about how long the hub takes to ingest the images of Fetched. 0: the hub does not
	// know.
	Seconds int64 `json:"seconds,omitempty"`
	// New are names of images that the hub does not have yet, at most 10,000. Only plans have them.
	New []string `json:"new,omitempty"`
	// Problems are the first ones, at most 10,000.
	Problems []WishlistProblem `json:"problems,omitempty"`
	Notes    []string          `json:"notes,omitempty"` // settings that do not apply to a hub
}

// WishlistProblem is a line of a wishlist that was not done, or a whole file or URL.
type WishlistProblem struct {
	Of   string `json:"of"`             // the file or URL, or the setting: images, registries
	Line int64  `json:"line,omitempty"` // from 1, also of the texts of a setting; 0: all of it
	Text string `json:"text,omitempty"` // of the line, or HOST/REPOSITORY of a registry
	Why  string `json:"why"`
}

// WishlistsPath is the path of the wishlists.
func WishlistsPath(domain string) string { return below(domain, "wishlists") }
