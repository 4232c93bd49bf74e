package resolver

import "time"

// The time that a pull gives its answerers and the sources of indexes.
//
// A pull can unpack its layers itself, so it waits long only for a hub that is alive. A dead hub
// costs a pull 1.5 s if it does not answer the lookup (package origin), or silenceTimeout if it
// does not send the index. After that all pulls go on without the hub for a while.
//
// A hub is alive if it has accepted a connection or sent a byte, for any request, in the last 10 s
// (origin.Watch). Waiting for it, however slow it is, is cheaper than unpacking the image over the
// same link. So the longer bounds apply, and a hub that dies after its answer to the lookup costs a
// pull 10 s.
const (
	// One lookup.
	lookupTimeout = 20 * time.Second // all answerers together, with the retries they ask for
	treeTimeout   = 15 * time.Second // the statement of one chain: a hub may have to make its tree

	// One index, from the start of its slot. Waiting for a slot does not count.
	silenceTimeout = 2 * time.Second // for a brief pull, until the first byte from a hub that was silent for 10 s
	beginTimeout   = time.Minute     // for a brief pull, until the index begins to arrive
	indexTimeout   = 5 * time.Minute // for any pull, until the whole index has arrived

	// An index that was cut off is requested maxAttempts times in all, with cutOffPause between.
	maxAttempts = 4
	cutOffPause = time.Second

	// An index that takes longer gives its slot to another one, and continues as a late index.
	slotTime = 5 * time.Second

	// After an index failed, pulls go on without a hub for this long.
	hubPause = 10 * time.Second

	// answerTTL is how long an answer counts. unknownTTL is the same for a negative answer: it is
	// short because an image that was just added should be lazy soon.
	answerTTL  = time.Minute
	unknownTTL = 5 * time.Second

	// lastRenewal is the longest pause before statements are requested again. It is that long
	// because some statements are never renewed: a hub may lack the second pinned key.
	lastRenewal = time.Hour
)

// Bounds of memory.
const (
	// maxFetches is the number of slots for indexes: decompressing an index takes several
	// megabytes, and a few indexes fill the link. maxLate is the number of late indexes.
	maxFetches = 4
	maxLate    = 12
	// maxRemembered bounds the remembered chains and repositories.
	maxRemembered = 20000
	// maxLayers bounds the layers of one image.
	maxLayers = 1000
)

// patience says how long a pull waits for a hub.
type patience int

const (
	// brief: the pull can still unpack its layers itself.
	brief patience = iota
	// full: the pull has claimed the chain below. No layer can be unpacked on that chain before its
	// tree is mounted, so the pull needs the hub anyway.
	full
)
