package disk

import "time"

// MinLimit is the smallest limit that Open accepts, in bytes: 64 of the largest chunks.
const MinLimit = 64 << 20

const (
	// segments is the number of segments of a full cache of 512 MiB to 256 GiB: eviction frees less
	// than a hundredth of the cache at a time, and few files are open. Smaller caches have fewer
	// segments, of 4 MiB, and larger ones have more, of 2 GiB.
	segments = 128
	// maxPins bounds the pins, because each pin is searched for each record that is evicted.
	// maxLabel bounds a pin's label in bytes.
	maxPins  = 64
	maxLabel = 4096
	// batchSize is the number of records for which the cache's mutex is held at a time. A
	// segment may have half a million; readers go on in between.
	batchSize = 256
	// directoryCost is an allowance, in bytes, for the directory itself and for what a file system
	// writes in addition to a file's blocks.
	directoryCost = 32 << 10
	// unsure is how many of the last records of a segment without a table are verified when it is
	// loaded: the number of concurrent writes (maxWrites), and some more.
	unsure = 8
	// pieceBlocks is the number of blocks that are read at a time, so that reads that wait for a
	// slow disk hold little memory. Most reads are not larger. (Reading 512 KiB at a time would
	// take a quarter less time, and eight times the memory.)
	pieceBlocks = 16
	// readAhead is how many bytes are read from disk at least. Records lie in the order in which
	// they arrived, so the next ones are likely to be read soon, and a large read takes hardly
	// longer than a small one. (5,000 small files one after the other: 0.77 s instead of 1.06 s.)
	readAhead = 128 << 10

	// watchEvery is how often the owner checks the disk without being woken.
	watchEvery = 2 * time.Second
	// reopenEvery is the time between two attempts to open a cache that could not be opened.
	reopenEvery = time.Minute

	// pause is how long a circuit breaker that failures have opened stays open. badReads failed
	// reads in a row open the breaker of reads, because a failing disk may take seconds for each.
	// One failed write opens the breaker of writes.
	pause    = 10 * time.Second
	badReads = 16
	// readPatience is how long a reader waits for the disk. Then the chunk is fetched from a hub.
	readPatience = time.Second
	// writePatience is how long storing a chunk may take. No reader waits for it, and it may
	// have to make room.
	writePatience = 10 * time.Second
	// closePatience is how long Close waits for the disk.
	closePatience = 10 * time.Second
	// maxReads and maxWrites bound the operations that wait for the disk at a time, abandoned
	// ones included.
	maxReads  = 32
	maxWrites = 4
	// hungReads and hungWrites are the numbers of abandoned operations that open a breaker. A
	// single hanging read does not open it: it may have hit a bad sector.
	hungReads  = 4
	hungWrites = 1
)
