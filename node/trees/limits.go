package trees

import (
	"time"

	"golang.org/x/time/rate"
)

// The limits of this package. ARCHITECTURE.md lists those that bound a node's memory.
const (
	// cachedPages limits the pages of extent maps in memory: 10 MB, enough to locate 170,000
	// chunks.
	cachedPages = 2048
	// maxEarly limits the trees that are open before they are mounted. To open a further tree, the
	// oldest one is closed; the start of that tree is prefetched when it is mounted.
	maxEarly = 16
	// recoverTogether is how many trees Recover opens at a time. Opening a tree waits for the disk.
	recoverTogether = 16

	// fetchTimeout limits the download of one index, or of one tree's locations.
	fetchTimeout = 5 * time.Minute
	// hintTimeout is how long a verified index waits for its locations, which are only a hint.
	hintTimeout = 2 * time.Second
	// maxLocatePause is the longest pause between attempts to fetch the locations of one tree. If a
	// fault needs the locations, it starts an attempt earlier: once repairPause has passed since
	// the last one.
	maxLocatePause = 5 * time.Minute
	// locateTogether is the number of trees whose locations are fetched at a time, not counting
	// locations that are fetched together with an index.
	locateTogether = 4
	// refreshAge is the age at which locations are refreshed. An attempt renews the age even if it
	// fails: the locations on the disk can still be used.
	refreshAge = time.Minute
	// renewAge is the age at which locations of a served tree are refreshed while a container runs.
	// It is much less than the week for which a hub keeps a pack that newer locations do not name.
	// The node looks for locations of this age once in renewEvery, on average.
	renewAge   = 24 * time.Hour
	renewEvery = time.Hour
	// renewFirst bounds the random pause between the start of the daemon and its first look.
	renewFirst = 10 * time.Second
	// repairPause is the least time between two attempts to repair the extent map of one tree.
	repairPause = 10 * time.Second

	// localRate limits how fast a local device is written and verified, in bytes a second:
	// containers use the same disk.
	localRate rate.Limit = 256 << 20
	// localStride limits how much of a local device is in the page cache while it is written or
	// verified, in bytes.
	localStride = 16 << 20
)
