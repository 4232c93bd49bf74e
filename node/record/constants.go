package record

import "time"

const (
	// Recordings.

	// maxAtOnce bounds concurrent recordings, of 256 KiB each. A further recording replaces the
	// oldest one whose start has not begun, or is refused. Recordings that RecordNext requested are
	// neither refused nor replaced.
	maxAtOnce = 16
	// A start is over when nothing was read for idleTime, and after maxTime at the latest.
	idleTime = 10 * time.Second
	maxTime  = 2 * time.Minute
	// minBytes is how many bytes a start reads at least. Fewer bytes are not a start: containerd,
	// for example, reads a little when it looks up a user before the start. The recording then
	// waits for a start, until nothing was read for startTimeout. Neither applies to a recording
	// that RecordNext requested.
	minBytes     = 64 << 10
	startTimeout = 30 * time.Minute
	// checkInterval is the interval of the checks for starts that are over.
	checkInterval = time.Second

	// pageSize is the unit of a device's ranges, in bytes.
	pageSize = 4096

	// A note describes one read in 64 bits: its first page, the number of pages, and the time in
	// milliseconds since the recording began. 0 means that there is no read.
	pageBits, countBits, timeBits = 32, 10, 22

	maxPages = 1<<countBits - 1
	timeMask = 1<<timeBits - 1

	// Reports.

	// maxQueued bounds the queued traces, each of less than 1 MiB.
	maxQueued = 32
	// maxTries is how often the reporter tries to send a trace.
	maxTries = 3
	// Before each attempt to send a trace, the reporter waits until no reader of this node uses the
	// link, for up to maxYield. yieldInterval is the pause between two checks.
	maxYield      = time.Minute
	yieldInterval = 200 * time.Millisecond
)

// pauses are the pauses between the attempts to send a trace. A random time of at most the same
// length is added to each.
var pauses = [maxTries - 1]time.Duration{10 * time.Second, time.Minute}
