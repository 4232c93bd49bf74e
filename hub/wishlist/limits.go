package wishlist

import (
	"fmt"
	"time"
)

const (
	maxText     = 8 << 20 // bytes of a file, or of the answer of a URL
	maxLines    = 50_000  // of a list
	maxLine     = 1024    // bytes
	maxURLs     = 32      // and registries
	maxFilter   = 256     // patterns of repositories, or of tags
	maxFound    = 50_000  // repositories that are wanted of whole registries
	maxTags     = 100_000 // of a repository
	maxImages   = 100_000 // of a list
	maxProblems = 10_000  // that are kept with a list

	passesAtOnce = 4 // lists that a process reads at a time; one with very many new images takes long
	plansAtOnce  = 2
	looksAtOnce  = 16 // requests of one pass
	fetchTimeout = time.Minute
	findTimeout  = 2 * time.Hour // for the repositories of whole registries, with the pauses
)

var errTooLong = fmt.Errorf("it is longer than %d MiB", maxText>>20)
