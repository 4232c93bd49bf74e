package origin

import "time"

// Timeouts of requests.
const (
	// stallTimeout is how long an origin may be silent while another origin can be asked, and
	// lastTimeout if no other can. beginTimeout replaces stallTimeout until the header of an answer
	// with an index or locations, because a pull waits for the index.
	stallTimeout = 3 * time.Second
	beginTimeout = time.Second
	lastTimeout  = 15 * time.Second
	// minProgress is how many bytes of a body have to arrive in each stallTimeout or lastTimeout.
	// Without this bound, an origin that sends single bytes could block a reader for unitTimeout,
	// and a pull for indexTimeout.
	minProgress = 4 << 10
	// lookupTimeout is how long a lookup waits for silent origins, for all of them together. It is
	// longer than the second after which TCP sends a lost SYN again. A lookup waits for the last
	// origin up to lookupLongest, if that origin is not silent.
	lookupTimeout = 1500 * time.Millisecond
	lookupLongest = 20 * time.Second
	// grace is how long after its last byte or accepted connection an origin does not count as
	// silent: it may be busy, or its link full.
	grace = 10 * time.Second
	// unitTimeout bounds the fetch of one unit from one origin. A link that needs longer for 4 MiB
	// is as good as down.
	unitTimeout = 30 * time.Second
	// indexTimeout bounds the fetch of an index, or of locations, from one origin.
	indexTimeout = 5 * time.Minute
	// traceTimeout bounds the sending of a trace to one hub.
	traceTimeout = 10 * time.Second
	// heldTimeout bounds the sending of a report of what this node has.
	heldTimeout = 30 * time.Second
)

// Failures.
const (
	// maxPause is the longest time for which an origin is passed over: by backoff, or because the
	// origin asks for it.
	maxPause = 30 * time.Second
	// maxWrong bounds the paths that wrongAnswers remembers.
	maxWrong = 1024
)

// Spare connections.
const (
	// longRTT is the round-trip time from which spares are worth opening.
	longRTT = 4 * time.Millisecond
	// maxSpares bounds the spares of one origin.
	maxSpares = 24
	// startSpares is how many spares are opened before it is known what a start reads. More would
	// be too many for a hub from which many nodes start images at the same time.
	startSpares = 4
	// spareTime is how long a spare stays open. Hubs and proxies close connections that carry
	// no request after some 10 s, and wait for them when they shut down.
	spareTime = 2 * time.Second
)

// The estimate of the path.
const (
	// pathTime is how long the lowest round-trip time and the highest bandwidth are kept, even if
	// later measurements are worse. A bandwidth is forgotten after bandwidthTime.
	pathTime      = 10 * time.Second
	bandwidthTime = time.Minute
	// minBurst is how many bytes have to arrive without a pause to measure a bandwidth. A pause
	// longer than maxGap ends a burst. maxGap is also added to the burst's time, because bytes that
	// piled up while the processors were busy are read in no time. On a long path TCP's slow start
	// sends bursts, each twice as long as the one before.
	minBurst = 128 << 10
	maxGap   = 5 * time.Millisecond
	// minTransfer is how many bytes an answer without such a burst needs to measure a
	// bandwidth.
	minTransfer = 256 << 10
)
