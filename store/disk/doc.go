// Package disk is a cache of plain chunks on this machine's disk, which all images share. It
// survives a restart, stays within its limit, frees space when the disk runs short, and never
// returns a byte that differs from what was put. Pinned chunks stay.
//
// Reads do not fail: if the disk cannot return a chunk, the chunk counts as missing. A cache that
// cannot be opened is absent until it can be opened. The package neither fetches chunks nor
// verifies what is put.
//
// Chunks are appended to segments, files of a fixed size. When room is needed, the segment that was
// used least recently is removed, after the pinned records in it have moved to another one. So a
// chunk costs no file, no directory entry and no fsync, chunks that arrived together lie together,
// and freeing is one unlink. Only pins are synced: after a crash of the machine, records that did
// not reach the disk fail their checksum and are fetched again.
//
//	cache.go     reads and writes; reserve.go finds the place of a record
//	breaker.go   circuit breakers of reads and writes, for a disk that fails or hangs
//	owner.go     a goroutine between Open and Close, which makes room ahead of need
//	evict.go     evicts segments
//	limits.go    accounts for segments and room
//	load.go      loads what a previous process left
//	pins.go      pins; external.go accounts for files of others on the same disk
//	segment.go   the files; index.go where each chunk lies
//
// Cache is one type with many methods, because index, segments and used bytes change together under
// one mutex. Parts with a state of their own are types of their own: breaker, space, External,
// pins, loader, segment, index.
//
// A known risk: RWF_NOWAIT makes the kernel begin to read ahead, and that waits if the disk's queue
// is full.
package disk
