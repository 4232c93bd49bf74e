package prefetch

import "time"

const (
	// Sequential readers.

	// maxReaders is how many sequential readers of one device are tracked inside of startup packs,
	// and how many outside of them.
	maxReaders = 16
	// minWindow and maxWindow bound how far ahead of a sequential reader data is fetched, in bytes.
	// The largest window takes half a second at 1 Gbit/s. So the link stays busy if the reader
	// stalls for half a second, as on a busy machine.
	minWindow = 256 << 10
	maxWindow = 64 << 20
	// windowSteps is the number of steps in which a window is requested: the next range is
	// requested when it is at least 1/windowSteps of the window. So most of the window is always
	// requested.
	windowSteps = 8
	// slack is the largest distance, in bytes, between a read and the end of the same reader's
	// previous reads. It is not 0 because the kernel sends the parts of one large read in any
	// order.
	slack = 2 << 20

	// The queue of speculative requests for units, which sequential readers, neighbours and guesses
	// share.

	// maxQueued bounds the queued requests of one device. Further requests are dropped.
	maxQueued = 1024
	// maxFetches bounds the requests in flight of all devices. maxDeviceFetches bounds those of one
	// device, so that other devices still make progress if one device is stuck.
	maxFetches       = 96
	maxDeviceFetches = 48

	// Startup packs.

	// maxPlans bounds how many startup packs have their units listed at a time. Listing reads all
	// locations of a tree.
	maxPlans = 4
	// maxPlanned bounds the extents of one startup pack that are prefetched. Chunks of further
	// extents are fetched on demand.
	maxPlanned = 1 << 16
	// maxUnits bounds the units of one device that were requested and are not stored yet. The
	// link's window bounds the bytes in flight.
	maxUnits = 64
	// maxRetries is how often a pass is repeated after the source has failed or the cache has not
	// stored a unit. The pauses between passes double, up to maxPause.
	maxRetries = 8
	maxPause   = time.Minute
	// shortPause is the interval at which a shortage of memory or disk is checked again.
	shortPause = time.Second
	// maxLoading is how long startup packs wait for a cache that is being loaded. A cache of 10 GB
	// loads in a fraction of it. Packs do not wait for a very large cache: the start is now.
	maxLoading = time.Second
	// maxEarly bounds the reads of a device that are kept until its triggers are known.
	maxEarly = 256
	// A pack is small if it has at most 1/smallPart of the bytes of the largest pack that the same
	// read triggers. Small packs are fetched first, because they hardly delay the other packs.
	smallPart = 16
	// maxInvalid is how many units in a row may be missing or invalid. After that many, the pack is
	// given up.
	maxInvalid = 8
	// startupCredit is how many uncompressed bytes of startup packs a device may fetch before any
	// of these bytes is read. Of the bytes beyond this credit, one in startupPart has to be read.
	// Packs that become wanted at the same time get a new credit together. The credit bounds how
	// much is fetched in vain for a start that differs from the recorded starts.
	startupCredit = 32 << 20
	startupPart   = 4
	// maxLoads bounds the units of startup packs that are read from the disk into memory at a time:
	// enough to keep a disk busy, and few enough that a fault that misses memory is served soon.
	maxLoads = 4

	// Guesses.

	// maxGuesses bounds how often the guess of a start is repeated. Half of it suffices for
	// programs with many libraries and modules.
	maxGuesses = 12
	// maxGuessing bounds the guesses that are computed at a time, and those that prepare starts.
	maxGuessing = 4
	// maxPrepared is how many uncompressed bytes of programs that may run are fetched before the
	// last step of preparing them.
	maxPrepared = 8 << 20
	// maxFirst is how many bytes a program has at most that is fetched as a whole when it starts.
	maxFirst = 8 << 20
	// maxSpent bounds the time in which a device's guesses are computed. A single guess has a
	// quarter of it.
	maxSpent = time.Second
	// maxExpected is how many different programs of containers are guessed for a device.
	maxExpected = 16
	// guessTime bounds the time of a start's guesses, and of their requests. Later they are of no
	// use.
	guessTime = 30 * time.Second

	// Neighbours of a missing chunk.

	// neighbourUnit is the size, in bytes, that a unit is assumed to have at least. Units are
	// assumed to be like that of the missing chunk: the spans of a SOCI index have 4 MiB. Its size
	// is that of its chunks, of unitSpan extents before and after the missing one at most, of which
	// one byte in plainToStored is left after compression.
	neighbourUnit = 64 << 10
	unitSpan      = 64
	plainToStored = 2
	// Of the uncompressed bytes of the units that readers miss, one in inVain may be fetched in
	// vain on each account. So a start that goes on missing tries its neighbours again.
	inVain = 4
	// neighbourSpan bounds how many extents of the missing chunk's file are examined before and
	// after this chunk, and how many extents of other files.
	neighbourSpan = 2048
	// neighbourProbe is how many units of other files are requested at most for a miss, as long as
	// readers have read less than one in otherPart of the bytes that were requested of other files.
	neighbourProbe = 4
	// neighbourCredit is how many uncompressed bytes of the missing chunk's file may be requested
	// before any of these bytes is read. As many may be requested of other files. Of the bytes
	// beyond this credit, one in filePart of the file's and one in otherPart of the other files'
	// has to be read.
	neighbourCredit = 8 << 20
	filePart        = 4
	otherPart       = 8
)
