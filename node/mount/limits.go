package mount

import "time"

// The limits of this package.
const (
	// maxAgain is how many mounts MountAgain may put over the first mount of a tree.
	maxAgain = 16
	// probePause is the least time between two attempts to mount an empty tree.
	probePause = 10 * time.Second
	// hideTimeout is how long the unmounting of a tree may wait for reads before the reads are
	// cancelled. hideAgain is the pause before the next cancellation.
	hideTimeout = 2 * time.Second
	hideAgain   = 100 * time.Millisecond
	// idleTimeout is how long UnmountIdle waits until reads are answered. idlePause is the pause
	// between its checks.
	idleTimeout = 2 * time.Second
	idlePause   = 20 * time.Millisecond

	// maxLine is the longest line of the mount table that is parsed, in bytes.
	maxLine = 32 << 10

	// loopTries is how often attach requests a free loop device at most: another process may take
	// the device before attach has configured it.
	loopTries = 64
	// loopBlock is the block size of loop devices, in bytes. Both files of a tree consist of such
	// blocks.
	loopBlock = 4096
	// loopReadAhead is how far the kernel reads ahead on a loop device, in units of 512 bytes. It
	// is the kernel's default for files. A loop device's default may be 20 times as large.
	loopReadAhead = 128 << 10 / 512
)
