package mount

import "time"

// The limits of this package.
const (
	// maxAgain limits how many mounts MountAgain puts over the first mount of a tree.
	maxAgain = 16
	// probePause is the least time between two attempts to mount an empty tree.
	probePause = 10 * time.Second
	// hideTimeout is how long the kernel may wait for reads of a tree that it unmounts, before the
	// reads are interrupted. hideAgain is the pause before they are interrupted again.
	hideTimeout = 2 * time.Second
	hideAgain   = 100 * time.Millisecond
	// idleTimeout is how long UnmountIdle waits for reads; idlePause is how often it checks whether
	// they are answered.
	idleTimeout = 2 * time.Second
	idlePause   = 20 * time.Millisecond

	// maxLine is the longest line of the mount table that is parsed, in bytes.
	maxLine = 32 << 10

	// loopTries limits how often a free loop device is requested: another process may take it
	// first.
	loopTries = 64
	// loopBlock is the block size of loop devices, in bytes: that of both files.
	loopBlock = 4096
	// loopReadAhead is how far the kernel reads ahead on a loop device, in units of 512 bytes. It
	// is the value for files. A loop device's default may be 20 times as large.
	loopReadAhead = 128 << 10 / 512
)
