package resolver

import "time"

// The time that a pull gives its answerers and the sources of indexes.
//
// A pull can unpack its layers itself, so it waits long only for a hub that is alive. A silent hub
// costs a pull 1.5 s if it does not answer the lookup (package origin), or silenceTimeout if it
// does not send the index. After that all pulls go on without the hub for a while.
//
// If a hub sends something, however slowly, waiting for it is cheaper than unpacking the image over
// the same link. Then the longer bounds apply, and the hub counts as silent 10 s after its last
// byte (origin.Watch).
const (
	// One lookup.
	lookupTimeout = 20 * time.Second // all answerers together, with the retries they ask for
	treeTimeout   = 15 * time.Second // the statement of one chain: a hub may have to make its tree

	// One index, from the start of its slot. Waiting for a slot does not count.
	silenceTimeout = 2 * time.Second // nothing was received since the request, by a brief pull
	beginTimeout   = time.Minute     // the index has not begun, by a brief pull
	indexTimeout   = 5 * time.Minute // the whole index, by any pull

	// An index that was cut off is requested maxAttempts times, with cutOffPause between.
	maxAttempts = 4
	cutOffPause = time.Second

	// While an index takes a slot, other indexes wait at most this long for it.
	slotTime = 5 * time.Second

	// After an index failed, pulls go on without a hub for this long.
	hubPause = 10 * time.Second

	// answerTTL is how long an answer counts. unknownTTL is the same for a negative answer: it is
	// short because an image that was just added should be lazy soon.
	answerTTL  = time.Minute
	unknownTTL = 5 * time.Second

	// Statements are requested again after firstRenewal at first. The pause doubles up to
	// lastRenewal, because some are never renewed: a hub may not have the second pinned key.
	firstRenewal = time.Second
	lastRenewal  = time.Hour
)

// Bounds of memory.
const (
	// maxFetches is the number of slots for indexes: decompressing one takes several megabytes, and
	// few fill the link. maxLate is the number of indexes that may go on after their slotTime.
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
