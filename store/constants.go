package store

import "time"

// Retries.
const (
	// maxPause bounds the pause between two tries of a reader. It is also the pause of background
	// requests after a failure.
	maxPause = 5 * time.Second
	// missingTime is how long a reader retries while all origins answer that they do not have the
	// chunk. Hubs that start, or whose bucket is being replaced, give that answer, too.
	missingTime = 10 * time.Second
	// maxAbsences bounds how many chunks are remembered because no origin has them. Each takes some
	// 200 bytes of memory.
	maxAbsences = 4096
)

// Bounds of what is in flight, and of what has arrived.
const (
	// maxFlights bounds the requests of all shares, maxPerShare those of one share.
	maxFlights  = 128
	maxPerShare = 64
	// alwaysPerShare is how many urgent requests a share may have even if other shares have used
	// up the limits of all shares.
	alwaysPerShare = 4
	// maxBackground and maxBackgroundPerShare bound how many of these requests are background
	// requests.
	maxBackground         = 96
	maxBackgroundPerShare = 48
	// maxBytes bounds the encoded bytes of all answers that are being received. The answer to a
	// background request has to fit into half of it, with all others. A share may always receive
	// one answer.
	maxBytes = 64 << 20
	// maxArriving is how many answers are decoded while they arrive. Each has its plain bytes in
	// memory meanwhile, however slowly it arrives.
	maxArriving = 4
	// maxUnstored bounds the memory, in bytes, of answers that have arrived and are not stored yet.
	// (An answer takes little more than its plain bytes.) If the cache is slower than the network,
	// answers beyond the bound are not stored: readers do not wait for the cache.
	maxUnstored = 32 << 20
	// While more than maxStreamUnstored bytes have arrived and are not stored yet, streams request
	// no further units. The limit is far below maxUnstored, so that a stream waits for the disk
	// instead of fetching units that would be dropped.
	maxStreamUnstored = maxUnstored / 4
	// storers is how many answers are stored at a time. More would take processor time from
	// readers.
	storers = 2
)

// The link estimate. docs/decisions/prefetch.md has the measurements.
const (
	// defaultRTT and defaultBandwidth (bytes a second) are assumed until something was measured. If
	// they are too high, faults wait longer during the first round trips.
	defaultRTT       = 20 * time.Millisecond
	defaultBandwidth = 25 << 20
	// minWindow and maxWindow bound the window in bytes. During startup the upper bound is
	// maxStartupWindow, unless the measured bandwidth-delay product needs more. With 16 MiB in
	// startup, a stream opened 70 connections at once at an RTT of 50 ms, and units that readers
	// waited for were 290 ms late.
	minWindow        = 128 << 10
	maxWindow        = 16 << 20
	maxStartupWindow = 8 << 20
	// A source's own estimate may come from TCP's slow start, and so be too low. It is raised to a
	// bandwidth-delay product of minPriorBDP bytes, but not above defaultBandwidth.
	minPriorBDP = 512 << 10
	// startupGain and steadyGain multiply the bandwidth-delay product. They are 2/ln 2 and 1.25,
	// the gains with which BBR starts and with which it probes for more bandwidth.
	startupGain = 2.89
	steadyGain  = 1.25
	// growth is the factor by which the bandwidth has to rise to count as growing. Startup ends
	// after flatSamples samples without growth. Only samples count in which the window was full.
	growth      = 1.25
	flatSamples = 6
	// Startup also ends after lateRTTs RTTs in a row that are more than an eighth longer than the
	// shortest RTT: these requests waited in a queue (RFC 9406, HyStart++). A late RTT on a new
	// connection does not count. The eighth is bounded by minLateness and maxLateness. The upper
	// bound is low because startup has to end before the queue at the bottleneck overflows: TCP
	// sends the bytes of a dropped packet again, and they arrive a fifth of a second late.
	lateRTTs    = 8
	minLateness = 4 * time.Millisecond
	maxLateness = 16 * time.Millisecond
	// startupSample and steadySample are the shortest time over which the bandwidth is
	// measured; in startup it is also at least one RTT, later two. Bytes that had piled up
	// while the processors were busy must not count as bandwidth.
	startupSample = 10 * time.Millisecond
	steadySample  = 100 * time.Millisecond
	// bandwidthAge and rttAge are the shortest times for which a sample counts. It counts for at
	// most twice that time, or, if no sample arrives in that time, until the next one does.
	bandwidthAge = 2 * time.Second
	rttAge       = 10 * time.Second
	// drainEvery is how often the queue is drained: only half of the bandwidth-delay product may be
	// in flight for three RTTs, or for minDrain if that is longer. In one of the RTTs the queue
	// drains, and in another an RTT is measured without a queue.
	drainEvery = rttAge / 2
	minDrain   = 20 * time.Millisecond
	// maxIdleWait is how long a share that has nothing in flight may have to wait for the streams
	// of other shares.
	maxIdleWait = 5 * time.Second
	// longRTT is the shortest RTT at which it pays to open connections ahead, and to request
	// neighbours of the chunk that a reader waits for.
	longRTT = 4 * time.Millisecond
	// minBytesPerRTT and maxBytesPerRTT bound Share.BytesPerRTT. It returns 0 until minRTTs RTTs
	// were measured, unless the source's own estimate of the RTT is longPrior at least. A busy
	// machine sees all first bytes of a pull after 10 ms, however short the path is.
	minBytesPerRTT = 128 << 10
	maxBytesPerRTT = 4 << 20
	minRTTs        = 8
	longPrior      = 4 * longRTT
	// connectRTTs is how many RTTs have to be measured before connections are opened ahead. Then
	// there is one for each bytesPerConnection of the window.
	connectRTTs        = 4
	bytesPerConnection = 128 << 10
	// typicalUnit is how many bytes an answer is assumed to have until its length is known.
	typicalUnit = 48 << 10
)
