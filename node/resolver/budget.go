package resolver

import "time"

// The time that a pull gives its answerers and the sources of indexes.
//
// A pull can go on without a hub, because containerd can unpack the layers. So it waits long only
// for a hub that is alive. A dead hub costs a pull 1.5 s if it does not answer the lookup (package
// origin), or silenceTimeout if it does not send the index. After that, brief pulls go on without
// the hub for a while.
//
// A hub is alive if it has accepted a connection or sent a byte, for any request, in the last 10 s
// (origin.Watch). Waiting for it, however slow it is, is cheaper than unpacking the image over the
// same link. So the longer bounds apply, and a hub that dies after its answer to the lookup costs a
// pull 10 s.
const (
	// The bounds of one lookup.
	lookupTimeout = 20 * time.Second // for all answerers together, with the retries that they ask for
	nextTime      = 5 * time.Second  // of it, for each answerer after one that does not answer
	treeTimeout   = 15 * time.Second // for the statement of one chain: the hub may have to make the chain's tree

	// The bounds of one index, from the start of its slot. Waiting for a slot does not count.
	silenceTimeout = 2 * time.Second // for a brief pull, until the first byte from a hub that was silent for 10 s
	beginTimeout   = time.Minute     // for a brief pull, until the index begins to arrive
	indexTimeout   = 5 * time.Minute // for any pull, until the whole index has arrived

	// An index whose download is cut off is requested maxAttempts times at most, with a pause of
	// cutOffPause between the attempts.
	maxAttempts = 4
	cutOffPause = time.Second

	// An index that takes longer than slotTime gives its slot to another index, and continues as a
	// late index. While there are maxLate late indexes, it keeps its slot.
	slotTime = 5 * time.Second

	// After the fetch of an index has failed, brief pulls go on without a hub for hubPause.
	hubPause = 10 * time.Second

	// answerTTL is how long an answer is used. unknownTTL is how long a negative answer is used. It
	// is short, so that an image that was just added is soon lazy.
	answerTTL  = time.Minute
	unknownTTL = 5 * time.Second

	// maxRenewalPause is the longest pause between requests for new statements. It is long because
	// some statements are never renewed: a hub may lack one of the pinned keys.
	maxRenewalPause = time.Hour
)

// Bounds of memory.
const (
	// maxFetches is the number of slots for indexes: decompressing an index takes several megabytes
	// of memory, and a few indexes fill the link. maxLate bounds the late indexes.
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
	// brief: the pull can still go on without a hub.
	brief patience = iota
	// full: the pull has claimed the chain below. A layer can be unpacked on that chain only when
	// the chain's tree is mounted, so the pull needs the hub anyway.
	full
)
