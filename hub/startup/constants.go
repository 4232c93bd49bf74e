package startup

import (
	"time"

	"github.com/klauspost/compress/zstd"
)

const (
	// Traces.

	// maxWrites bounds the traces decoded at a time, each of up to some ten megabytes. maxReads
	// bounds the images described or exported at a time; each may need an index in the scratch
	// space. Further requests wait for up to enterTimeout.
	maxWrites    = 4
	maxReads     = 2
	enterTimeout = 5 * time.Second
	// In each senderWindow, one sender may add senderTraces traces of a tree, and begin
	// senderWorkloads workloads. The hub keeps more workloads than that, so one sender cannot
	// displace those of all others.
	senderWindow    = 7 * 24 * time.Hour
	senderTraces    = 64
	senderWorkloads = 8
	// maxSenders bounds the pairs of sender and tree in memory, of all domains. A pair takes 200
	// bytes.
	maxSenders = 20_000
	// maxConflicts bounds how often a change of recordings is tried, and how often a layout is made
	// again, if another process has changed the same recordings or layout meanwhile.
	maxConflicts = 3
	// firstFiles is the number of files named for each workload, so that users can recognize it.
	firstFiles = 8

	// Layouts.

	// The hub tries to make a layout maxTries times; a crash of the hub during an attempt counts as
	// a failure. After the last failure the tree keeps its layout until there are new traces.
	maxTries = 3
	// layoutTimeout bounds the time for one layout, because others wait for it.
	layoutTimeout = 15 * time.Minute
	// guessTimeout bounds a guess, because a hostile image can make it slow. If a guess takes
	// longer, the layout is made without it.
	guessTimeout = 2 * time.Minute
	// After a layout was made, new traces cause the next one only after restFactor times as long as
	// it took to make it. So nodes can make the hub spend at most a fifth of its time on one tree.
	restFactor = 4
	// maxSizes bounds the device sizes in memory. Each takes 50 bytes or more.
	maxSizes = 4096
	// mapPages bounds the cached pages of an extent map: 5 MB.
	mapPages = 1024
	// maxHeldBytes bounds the memory of the decoded units in a chunkReader.
	maxHeldBytes = 32 << 20
	// maxLookedUp bounds the chunks whose units a chunkReader remembers. Each takes 100 bytes.
	maxLookedUp = 200_000
	// locateBatch is the number of chunks looked up with one query.
	locateBatch = 500

	// Recompression.

	// recompressTimeout bounds the work on one tree: 2 GiB take 9 minutes alone, and ten times that
	// beside ingestion.
	recompressTimeout = 2 * time.Hour
	// While images are ingested, a pause follows each unit, ingestRestFactor times as long as the
	// unit took.
	ingestRestFactor = 9
	// The zstd program, its level, and the library's level where the program is missing.
	zstdProgram  = "zstd"
	programLevel = "-18"
	libraryLevel = zstd.SpeedBestCompression
	// The program has the lowest priority. Compressing a unit takes about a tenth of a second on an
	// idle processor. A program that takes longer than programTimeout is killed; programEnd later
	// its output is closed.
	programNice    = 19
	programTimeout = 20 * time.Second
	programEnd     = 5 * time.Second

	// Eviction.

	// By default all startup packs together may take 1/ordinaryShare of the bytes of all other
	// packs, and at least leastLimit bytes.
	ordinaryShare = 4
	leastLimit    = 8 << 30
	// The startup packs of one tree may take 1/treeShare of the quota.
	treeShare = 4
	// maxUsed bounds the trees, of all domains, whose last use waits in memory for the catalog.
	maxUsed = 10_000
	// storeUsesEvery is the interval at which last uses of trees are written to the catalog, and
	// storeUsesTimeout bounds the last write, when the hub ends.
	storeUsesEvery   = time.Minute
	storeUsesTimeout = 2 * time.Second
	// sweepEvery is the interval of Sweep.
	sweepEvery = 10 * time.Minute
	// keepBytes bounds the bytes of the retired startup packs that are kept for Timing.Keep. Beyond
	// it the longest retired packs are deleted earlier, but not before keepLeast. One step deletes
	// at most dropAtOnce packs.
	keepBytes  = 8 << 30
	keepLeast  = 10 * time.Minute
	dropAtOnce = 100
)
