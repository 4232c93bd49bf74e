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

	// minMinor is the oldest protocol (7.minMinor) with the wire structs used here, that of Linux
	// 5.4. All kernels that can mount a tree are newer.
	minMinor = 31
	// wanted are the requested features: concurrent reads of a file, of up to maxRead, concurrent
	// lookups, an error that distinguishes an aborted connection from an unmounted one, and
	// resending.
	wanted = gofuse.CAP_ASYNC_READ | gofuse.CAP_ASYNC_DIO | gofuse.CAP_MAX_PAGES | gofuse.CAP_PARALLEL_DIROPS |
		gofuse.CAP_ABORT_ERROR | gofuse.CAP_INIT_EXT | gofuse.CAP_HAS_RESEND
	// resentBit in a request's unique number says that it was sent before (FUSE_UNIQUE_RESEND).
	resentBit = 1 << 63
	// forever is how long, in seconds, the kernel may cache what it knows of a device: a device
	// never changes. Larger numbers overflow in the arithmetic of some kernels.
	forever = math.MaxInt32

	// Sizes, in bytes.

	pageSize      = 4096
	inHeaderSize  = int(unsafe.Sizeof(gofuse.InHeader{}))
	outHeaderSize = int(unsafe.Sizeof(gofuse.OutHeader{}))
	// direntAlign divides the size of each entry of a READDIR answer.
	direntAlign = 8
	// maxRead is the size of the largest read that the kernel may send: 256 pages of 4 KiB, the
	// most that kernels allow by default, or 16 pages of 64 KiB.
	maxRead = 1 << 20
	// requestSize is the space offered for each request: the least that the kernel accepts
	// (FUSE_MIN_READ_BUFFER). The largest request for a read-only directory fits: a LOOKUP.
	requestSize = 8192
	// slotSize is the size of a journal's slot. A READ has 80 bytes, a LOOKUP of a device 105. Of a
	// longer request only the beginning is kept. The size is the same in all versions, as they open
	// each other's journals.
	slotSize = 128

	// Modes of the files.

	fileMode = unix.S_IFREG | 0o400
	dirMode  = unix.S_IFDIR | 0o500

	// Admission.

	// maxPerDevice bounds the active reads of one device. It is far above what a disk or a network
	// handles at a time, because many of them may wait for the network while others find their
	// bytes on this machine.
	maxPerDevice = 128
	// maxActive bounds the active reads of all devices, and maxBytes the bytes that they ask for.
	maxActive = 512
	maxBytes  = 64 << 20
	// alwaysPerDevice is how many reads of a device may be active whatever the other devices do.
	alwaysPerDevice = 4
	// maxBackground is the largest number of unanswered reads at which the kernel still sends
	// further ones. Beyond it, the kernel blocks processes that read. That bound is not per device:
	// with the kernel's default of 12, stuck readers of one device would block the readers of all
	// devices. So the server fails some reads before the bound is reached (maxUnanswered). While
	// few reads are unanswered, it sets a smaller bound (window).
	maxBackground = 1 << 14
	// maxUnanswered bounds the active and the queued reads of all devices. It is below
	// maxBackground, so that the server evicts reads before the kernel's own bound blocks the
	// readers of all devices.
	maxUnanswered = maxBackground - 1024
	// windowRoom is how many requests the kernel may send beyond those that the server knows, after
	// each move of the window. Between moves that number is minRoom to maxRoom. These requests may
	// all precede a request for another device in the kernel's single queue. At 10 µs each, 64 of
	// them delay that request by less than 1 ms. Less room means more system calls.
	windowRoom = 64
	// minRoom and maxRoom are the bounds of the room at which the window is moved.
	minRoom = windowRoom / 2
	maxRoom = windowRoom * 2
	// lostAfter is how long requests wait in the kernel, while the server reads none, until they
	// count as lost. A server reads requests within microseconds. Requests that the kernel only
	// queues are sent earlier than that, because health.Check makes the kernel send them.
	lostAfter = 6 * time.Second

	// Memory.

	// spareBuffers is how many unused buffers are kept for the next reads.
	spareBuffers = 16
	// journalSlots is how many requests can be unanswered in a new journal. It is above what the
	// kernel sends; further requests are served, but not kept. Only used slots take memory.
	journalSlots = 1 << 17

	// Times.

	// readDeadline is how long a Reader has, counted from the arrival of the request. The kernel
	// reports tasks that hang for 120 s.
	readDeadline = 100 * time.Second
	// readGrace is how long after its deadline a read fails if its Reader has not returned.
	readGrace = 10 * time.Second
	// watchInterval is the interval of the checks for expired reads and for stalls.
	watchInterval = time.Second
	// drainTimeout is how long a server that gives up its connection waits for active reads.
	// stopTimeout is how long it then waits for cancelled Readers to return.
	drainTimeout = 2 * time.Second
	stopTimeout  = 5 * time.Second
	// removeTimeout is how long Remove waits for a Reader to return.
	removeTimeout = 10 * time.Second
	// initTimeout is how long Mount waits for the kernel's first request, and statTimeout how long
	// for the server of a file system that is already mounted.
	initTimeout = 10 * time.Second
	statTimeout = 5 * time.Second
	// unmountPause is the interval of attempts to unmount a busy directory.
	unmountPause = 10 * time.Millisecond
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
