package fuse

import (
	"math"
	"time"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	// The protocol.

	// minMinor is the minor version of the oldest protocol (7.31, Linux 5.4) that has the wire
	// structs used here. All kernels that can mount a tree are newer.
	minMinor = 31
	// wanted are the features that the server requests: concurrent reads of one file, reads of up
	// to maxRead bytes, concurrent lookups, an error that distinguishes an aborted connection from
	// an unmounted one, and resending, which needs the extended flags of INIT.
	wanted = gofuse.CAP_ASYNC_READ | gofuse.CAP_ASYNC_DIO | gofuse.CAP_MAX_PAGES | gofuse.CAP_PARALLEL_DIROPS |
		gofuse.CAP_ABORT_ERROR | gofuse.CAP_INIT_EXT | gofuse.CAP_HAS_RESEND
	// resentBit is set in the unique number of a request that the kernel resends
	// (FUSE_UNIQUE_RESEND).
	resentBit = 1 << 63
	// forever is how long, in seconds, the kernel may cache what it knows of a device: a device
	// never changes. Larger numbers overflow in the arithmetic of some kernels.
	forever = math.MaxInt32

	// Sizes, in bytes.

	pageSize      = 4096
	inHeaderSize  = int(unsafe.Sizeof(gofuse.InHeader{}))
	outHeaderSize = int(unsafe.Sizeof(gofuse.OutHeader{}))
	// direntAlign is the alignment of the entries of a READDIR answer, in bytes.
	direntAlign = 8
	// maxRead is the size of the largest read that the kernel may send: 256 pages of 4 KiB, the
	// most that kernels allow by default, or 16 pages of 64 KiB.
	maxRead = 1 << 20
	// requestSize is the space offered for each request: the least that the kernel accepts
	// (FUSE_MIN_READ_BUFFER). The largest request that a read-only directory gets, a LOOKUP, fits.
	requestSize = 8192
	// slotSize is the size of a journal's slot. A READ has 80 bytes, a LOOKUP of a device 105. Of a
	// longer request only the beginning is kept. All versions of Lighter use the same size, because
	// they open each other's journals.
	slotSize = 128

	// Modes of the files.

	fileMode = unix.S_IFREG | 0o400
	dirMode  = unix.S_IFDIR | 0o500

	// Admission.

	// maxPerDevice bounds the active reads of one device. It is far above the number that a disk or
	// a network handles at a time: while many reads wait for the network, others find their bytes
	// on this machine.
	maxPerDevice = 128
	// maxActive bounds the active reads of all devices, and maxBytes the bytes that they ask for.
	maxActive = 512
	maxBytes  = 64 << 20
	// alwaysPerDevice is the number of reads of each device that may be active even if maxActive or
	// maxBytes is reached.
	alwaysPerDevice = 4
	// maxBackground is the largest number of unanswered reads at which the kernel still sends
	// further reads. Beyond this number, the kernel blocks processes that read. The bound is not
	// per device: with the kernel's default of 12, stuck readers of one device would block the
	// readers of all devices. So the server fails some reads before the bound is reached
	// (maxUnanswered). While few reads are unanswered, it sets a smaller bound (window).
	maxBackground = 1 << 14
	// maxUnanswered bounds the active and the queued reads of all devices. It is below
	// maxBackground, so that the server evicts reads before the kernel's own bound blocks the
	// readers of all devices.
	maxUnanswered = maxBackground - 1024
	// windowRoom is the room that each move of the window makes: the number of requests that the
	// kernel may send beyond those that the server knows. In the kernel's single queue, all of them
	// may precede a request for another device. At 10 µs each, 64 requests delay that request by
	// less than 1 ms. Less room means more system calls.
	windowRoom = 64
	// minRoom and maxRoom bound the room between two moves of the window: if the room is smaller or
	// larger, the window is moved.
	minRoom = windowRoom / 2
	maxRoom = windowRoom * 2
	// lostAfter is how long requests wait in the kernel, while the server reads none, until they
	// count as lost. A server reads requests within microseconds. The kernel may also hold back
	// background requests in a queue. health.Check makes the kernel send them before lostAfter has
	// passed.
	lostAfter = 6 * time.Second

	// Memory.

	// spareBuffers is how many unused buffers are kept for the next reads.
	spareBuffers = 16
	// journalSlots is the number of slots of a new journal, one for each unanswered request. It is
	// far above the number of requests that the kernel sends. A request without a slot is served,
	// but a successor does not find it. Only used slots take memory.
	journalSlots = 1 << 17

	// Times.

	// readDeadline is how long a Reader has, counted from the arrival of the request. The kernel
	// reports tasks that hang for 120 s.
	readDeadline = 100 * time.Second
	// readGrace is how long after its deadline a read fails if its Reader has not returned.
	readGrace = 10 * time.Second
	// watchInterval is the interval of the checks for expired reads and for stalls.
	watchInterval = time.Second
	// drainTimeout is how long a server that gives up its connection waits until all reads are
	// answered. stopTimeout is how long it then waits for cancelled Readers to return.
	drainTimeout = 2 * time.Second
	stopTimeout  = 5 * time.Second
	// removeTimeout is how long Remove waits for the device's Reader to return.
	removeTimeout = 10 * time.Second
	// initTimeout is how long Mount waits for the kernel's first request. statTimeout is how long
	// Mount waits for an answer of a file system that is already mounted on the directory.
	initTimeout = 10 * time.Second
	statTimeout = 5 * time.Second
	// unmountPause is the pause between attempts to unmount a busy directory.
	unmountPause = 10 * time.Millisecond
	// forgetTimeout is how long IsOpen waits for the kernel to forget a file.
	forgetTimeout = 500 * time.Millisecond
	// awaitStep is the interval at which await checks its condition.
	awaitStep = 5 * time.Millisecond
	// logInterval is the least time between two log lines about failed reads of one device.
	logInterval = 10 * time.Second
)

// Opcodes of include/uapi/linux/fuse.h. go-fuse does not export its own.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opStatfs      = 17
	opRelease     = 18
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opInterrupt   = 36
	opDestroy     = 38
	opNotifyReply = 41
	opBatchForget = 42
)
