package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// On disk, below the cache's directory:
//
//	lock                  locked by the process that uses the cache
//	0000000000.segment    records, one after the other
//	0000000000.table      lists the records of a sealed segment; without it the segment is scanned
//	ID.pin                the chunks that are pinned under that ID
//
// docs/format.md has their bytes. Each block of a record has a checksum of its own, so that a read
// of a few kilobytes verifies only the blocks that it needs.
const (
	recordMagic  = 0x3152544c // "LTR1"
	recordHeader = 48
	blockSize    = 4096
	blockStride  = blockSize + 4
	tableMagic   = 0x3154544c // "LTT1"
	tableEntry   = chunk.Size + 8
	tableFooter  = 12

	newSuffix = ".new" // of a file that is being written; durable.Replace uses the same
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errDamaged = errors.New("wrong checksum")

// recordSize returns the bytes that a record of a chunk of that length takes.
func recordSize(length uint32) int64 {
	blocks := (int64(length) + blockSize - 1) / blockSize
	return recordHeader + int64(length) + 4*blocks
}

// record is a segment's own entry for a chunk in it. Eviction and the table need it.
type record struct {
	key    key
	offset uint32
	length uint32
}

// segment is one file of the cache, with its table.
type segment struct {
	path string // without the suffix
	file *os.File
	raw  syscall.RawConn // file's
	used atomic.Int64    // when it was last used, by the cache's clock

	reads     *breaker     // the cache's
	abandoned atomic.Int64 // abandoned reads of this segment

	// guarded by the cache's mu
	slot     uint32 // in the index
	size     int64  // of the file, with the records that are being written
	reserved int64  // records in it, with those that are being written
	pending  int    // records that are being written
	live     int    // records that the index points to
	records  []record
	ids      []byte // whole IDs of the records, until the table is written
	gone     bool   // it was evicted
	pinned   int64  // bytes of the pinned records; uncounted: something has changed
}

// uncounted is the value of segment.pinned if the bytes have to be counted again.
const uncounted = -1

// newSegment returns a segment that owns file. If it fails, it closes file.
func newSegment(path string, file *os.File, reads *breaker) (*segment, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &segment{path: path, file: file, raw: raw, reads: reads}, nil
}

// cost returns what the segment takes of the disk with its table, in bytes.
func (s *segment) cost() int64 { return costOf(s.size, s.reserved) }

func costOf(size, records int64) int64 {
	if records == 0 {
		return 0
	}
	return onDisk(size) + onDisk(records*tableEntry+tableFooter)
}

// onDisk rounds the size of a file up to whole blocks.
func onDisk(size int64) int64 { return (size + 4095) &^ 4095 }

func segmentPath(dir string, n uint64) string { return filepath.Join(dir, fmt.Sprintf("%010d", n)) }

// createSegment makes the file of a segment: sparse, and as long as it may become. For a file that
// grows, XFS would preallocate as much space again, and keep it while the file is open.
func createSegment(dir string, n uint64, size int64, reads *breaker) (*segment, error) {
	path := segmentPath(dir, n)
	file, err := os.OpenFile(path+".segment", os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create cache segment %d: %w", n, err)
	}
	if err := file.Truncate(size); err != nil {
		err = fmt.Errorf("create cache segment %d: %w", n, err)
		return nil, errors.Join(err, os.Remove(path+".segment"), file.Close())
	}
	return newSegment(path, file, reads)
}

// add lists a record that was written. The caller holds the cache's mu.
func (s *segment) add(ref chunk.Ref, offset uint32) {
	s.records = append(s.records, record{keyOf(ref.ID), offset, ref.Length})
	s.ids = append(s.ids, ref.ID[:]...)
	s.pinned = uncounted
}

// lost notes that the index does not point to one of the records any more. The caller holds the
// cache's mu.
func (s *segment) lost() {
	s.live--
	s.pinned = uncounted
}

// unlink removes the segment's files. It removes the table last, because removeStray removes a
// table without a segment.
func (s *segment) unlink() error {
	for _, suffix := range []string{".segment", ".table"} {
		if err := os.Remove(s.path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// buffers hold records that are being put, moved or scrubbed.
var buffers = sync.Pool{New: func() any { b := make([]byte, recordSize(chunk.MaxLength)); return &b }}

// blockSum returns the checksum of block n of a chunk. It also covers the ID and n, so that a block
// in the wrong place fails.
func blockSum(id chunk.ID, n int, data []byte) uint32 {
	var salt [chunk.Size + 4]byte
	copy(salt[:], id[:])
	binary.LittleEndian.PutUint32(salt[chunk.Size:], uint32(n))
	return crc32.Update(crc32.Checksum(salt[:], castagnoli), castagnoli, data)
}

// appendRecord appends a chunk's record to b. Header and blocks are written by one call.
func appendRecord(b []byte, id chunk.ID, plain []byte) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, recordMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(plain)))
	b = append(b, id[:]...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
	b = append(b, 0, 0, 0, 0)
	for n := 0; len(plain) > 0; n++ {
		data := plain[:min(blockSize, len(plain))]
		b = append(b, data...)
		b = binary.LittleEndian.AppendUint32(b, blockSum(id, n, data))
		plain = plain[len(data):]
	}
	return b
}

// pieces are buffers for blocks that are being read, one for each read.
var pieces = sync.Pool{New: func() any { return new([pieceBlocks * blockStride]byte) }}

// read fills dst with the chunk's bytes from offset from on, and verifies the blocks that it reads.
// If the disk does not answer, it returns errHangs, and nothing writes to dst later.
func (s *segment) read(offset uint32, ref chunk.Ref, from int, dst []byte) error {
	if from < 0 || from+len(dst) > int(ref.Length) {
		return fmt.Errorf("read %d bytes at %d of a chunk of %d", len(dst), from, ref.Length)
	}
	buffer := pieces.Get().(*[pieceBlocks * blockStride]byte)
	for len(dst) > 0 {
		first := from / blockSize
		end := min(from+len(dst), (first+pieceBlocks)*blockSize)
		err := s.readBlocks(buffer[:], offset, ref, from, dst[:end-from], len(dst))
		if err == errHangs { // the abandoned read owns the buffer
			return err
		}
		if err != nil {
			pieces.Put(buffer)
			return err
		}
		dst, from = dst[end-from:], end
	}
	pieces.Put(buffer)
	return nil
}

// readBlocks does what read does, for at most as many blocks as buffer has room for. wanted is how
// many bytes of the chunk the caller will read in all, from offset from on.
func (s *segment) readBlocks(buffer []byte, offset uint32, ref chunk.Ref, from int, dst []byte, wanted int) error {
	first, last := from/blockSize, (from+len(dst)-1)/blockSize
	lastEnd := min((last+1)*blockSize, int(ref.Length))
	b := buffer[:(last-first)*blockStride+lastEnd-last*blockSize+4]
	at := int64(offset) + recordHeader + int64(first)*blockStride
	if err := s.readAt(b, at, wanted); err != nil {
		return err
	}
	for n := first; n <= last; n++ {
		stride := min(blockStride, len(b))
		data := b[:stride-4]
		if blockSum(ref.ID, n, data) != binary.LittleEndian.Uint32(b[stride-4:]) {
			return errDamaged
		}
		skip := max(0, from-n*blockSize)
		dst = dst[copy(dst, data[skip:]):]
		b = b[stride:]
	}
	return nil
}

// readRecord reads a whole record into b, verifies it, and returns its chunk's ID. If it returns
// errHangs, the abandoned read still writes to b.
func (s *segment) readRecord(r record, b []byte) (id chunk.ID, err error) {
	if err := s.readAt(b, int64(r.offset), len(b)); err != nil {
		return id, err
	}
	id, length, ok := decodeHeader(b)
	if !ok || keyOf(id) != r.key || length != r.length {
		return id, errDamaged
	}
	b = b[recordHeader:]
	for n := 0; len(b) > 0; n++ {
		stride := min(blockStride, len(b))
		if blockSum(id, n, b[:stride-4]) != binary.LittleEndian.Uint32(b[stride-4:]) {
			return id, errDamaged
		}
		b = b[stride:]
	}
	return id, nil
}

// decodeHeader decodes a record's header, and reports whether it is valid.
func decodeHeader(b []byte) (id chunk.ID, length uint32, ok bool) {
	length = binary.LittleEndian.Uint32(b[4:])
	ok = binary.LittleEndian.Uint32(b) == recordMagic && length > 0 && length <= chunk.MaxLength &&
		crc32.Checksum(b[:40], castagnoli) == binary.LittleEndian.Uint32(b[40:])
	return chunk.ID(b[8:40]), length, ok
}

// readAt fills b from the file's offset at on. wanted is how many bytes the caller will read from
// there in all. If the bytes are in memory, readAt needs no goroutine of its own. If it returns
// errHangs, the abandoned read still writes to b.
func (s *segment) readAt(b []byte, at int64, wanted int) (err error) {
	n := 0
	closed := s.raw.Control(func(fd uintptr) {
		n, err = unix.Preadv2(int(fd), [][]byte{b}, at, unix.RWF_NOWAIT)
	})
	switch {
	case closed != nil:
		return os.ErrClosed
	case err == nil && n == len(b):
		return nil
	}
	return s.readDisk(b, at, wanted)
}

// readDisk does what readAt does, for bytes that are not in memory.
func (s *segment) readDisk(b []byte, at int64, wanted int) error {
	var n int
	var err, closed error
	hangs := s.reads.do(func() {
		closed = s.raw.Control(func(fd uintptr) {
			// Only advice: the read works without it.
			_ = unix.Fadvise(int(fd), at, max(readAhead, int64(wanted)), unix.FADV_WILLNEED)
			n, err = preadFull(int(fd), b, at)
		})
	}, &s.abandoned)
	switch {
	case hangs != nil:
		return hangs
	case closed != nil:
		return os.ErrClosed
	case err == nil && n < len(b):
		return io.ErrUnexpectedEOF
	}
	return err
}

// preadFull reads until b is full or the file ends.
func preadFull(fd int, b []byte, at int64) (n int, err error) {
	for n < len(b) {
		var m int
		m, err = unix.Pread(fd, b[n:], at+int64(n))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || m == 0:
			return n, err
		}
		n += m
	}
	return n, nil
}
