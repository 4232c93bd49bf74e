package erofs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
)

// docs/format.md has the layout; the kernel's names are in fs/erofs/erofs_fs.h. Sizes, offsets and
// maxima are in bytes, unless a comment says otherwise.
const (
	// BlockSize is the block size of images, and the alignment of files on the device, in bytes.
	BlockSize = 4096

	blockBits   = 12
	superOffset = 1024
	superSize   = 128
	slotOffset  = superOffset + superSize
	slotSize    = 128

	nidUnit    = 32 // bytes per nid
	nidsABlock = BlockSize / nidUnit
	rootNid    = nidsABlock

	inodeSize      = 64
	indexSize      = 8
	direntSize     = 12
	xattrHeadSize  = 12
	xattrEntrySize = 4

	maxName   = 255
	maxLink   = 4095
	maxPath   = 4095           // with its leading slash: Linux's PATH_MAX without the NUL
	maxXattr  = math.MaxUint16 // the value of one attribute
	maxXattrs = xattrHeadSize + 4*(math.MaxUint16-1)
	maxFile   = 1 << (blockBits + chunkBitsMask) // what one chunk index can cover
	maxBlocks = math.MaxUint32                   // blocks of the device; block number 2³²-1 means a hole
	maxNsec   = 999_999_999                      // nanoseconds
	noID      = math.MaxUint32                   // -1, which Linux gives to no user

	// The field i_u.c.format: this bit for chunk indexes, and log2 of a chunk's blocks in the low
	// bits.
	chunkIndex    = 0x20
	chunkBitsMask = 0x1f
)

// MaxSize limits the size of an image, in bytes. That is about 20,000,000 inodes, far more than any
// image has. It limits what a malicious hub can make a node store and check.
const MaxSize = 4 << 30

// Values of i_format: bit 0 says that the inode has 64 bytes, the bits above are the data layout
// (FLAT_PLAIN, FLAT_INLINE, CHUNK_BASED).
const (
	plain   uint16 = 0<<1 | 1
	inline  uint16 = 2<<1 | 1
	indexed uint16 = 4<<1 | 1
)

const (
	magic          = 0xe0f5e1e2
	compatFeatures = 0x1 | 0x2 // superblock checksum; inodes have an mtime
	needFeatures   = 0x4 | 0x8 // chunk-based files, device table
	volume         = "lighter"
)

// zeros is padding.
var zeros [BlockSize]byte

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// superblock has the fields of block 0 that differ between images.
type superblock struct {
	inodes       uint64
	blocks       uint32 // of the image
	deviceBlocks uint32
	uuid         [16]byte
}

// encode returns block 0.
func (s *superblock) encode() []byte {
	le := binary.LittleEndian
	block := make([]byte, BlockSize)
	b := block[superOffset:slotOffset]
	le.PutUint32(b[0x00:], magic)
	le.PutUint32(b[0x08:], compatFeatures)
	b[0x0c] = blockBits
	le.PutUint16(b[0x0e:], rootNid)
	le.PutUint64(b[0x10:], s.inodes)
	le.PutUint32(b[0x24:], s.blocks)
	copy(b[0x30:], s.uuid[:])
	copy(b[0x40:], volume)
	le.PutUint32(b[0x50:], needFeatures)
	le.PutUint16(b[0x56:], 1) // extra devices
	le.PutUint16(b[0x58:], slotOffset/slotSize)

	slot := block[slotOffset : slotOffset+slotSize]
	copy(slot, volume)
	le.PutUint32(slot[0x40:], s.deviceBlocks)

	le.PutUint32(b[0x04:], superChecksum(block))
	return block
}

// superChecksum returns the CRC-32C of block 0 from the superblock on, with a zero checksum field
// and without the usual final inversion.
func superChecksum(block []byte) uint32 {
	b := bytes.Clone(block[superOffset:])
	clear(b[4:8])
	return ^crc32.Checksum(b, castagnoli)
}

// decode decodes block 0. It accepts only what encode writes.
func (s *superblock) decode(block []byte) error {
	le := binary.LittleEndian
	b := block[superOffset:slotOffset]
	if m := le.Uint32(b); m != magic {
		return fmt.Errorf("magic number is %#x, not EROFS' %#x", m, uint32(magic))
	}
	if want, got := superChecksum(block), le.Uint32(b[0x04:]); want != got {
		return fmt.Errorf("checksum of the superblock is %#x, its bytes have %#x", got, want)
	}
	if f := le.Uint32(b[0x50:]); f != needFeatures {
		return fmt.Errorf("incompatible features are %#x, not %#x", f, needFeatures)
	}
	s.inodes = le.Uint64(b[0x10:])
	s.blocks = le.Uint32(b[0x24:])
	copy(s.uuid[:], b[0x30:])
	s.deviceBlocks = le.Uint32(block[slotOffset+0x40:])
	want := s.encode()
	copy(want[superOffset+0x04:superOffset+0x08], b[0x04:]) // the checksum was verified above
	for i := range want {
		if block[i] != want[i] {
			return fmt.Errorf("byte %d of the superblock's block is %#x, not %#x", i, block[i], want[i])
		}
	}
	return nil
}

// header is an inode without its extended attributes and data: 64 bytes.
type header struct {
	format     uint16 // plain, inline or indexed
	xattrCount uint16 // i_xattr_icount
	mode       uint16
	size       uint64
	union      uint32 // i_u: first block, device number or chunk format
	number     uint32 // i_ino
	uid, gid   uint32
	sec        uint64
	nsec       uint32
	nlink      uint32
}

func (h *header) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, h.format)
	b = le.AppendUint16(b, h.xattrCount)
	b = le.AppendUint16(b, h.mode)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, h.size)
	b = le.AppendUint32(b, h.union)
	b = le.AppendUint32(b, h.number)
	b = le.AppendUint32(b, h.uid)
	b = le.AppendUint32(b, h.gid)
	b = le.AppendUint64(b, h.sec)
	b = le.AppendUint32(b, h.nsec)
	b = le.AppendUint32(b, h.nlink)
	return append(b, zeros[:inodeSize-48]...)
}

// decode decodes the first 64 bytes of b.
func (h *header) decode(b []byte) error {
	le := binary.LittleEndian
	_ = b[inodeSize-1]
	*h = header{
		format:     le.Uint16(b),
		xattrCount: le.Uint16(b[2:]),
		mode:       le.Uint16(b[4:]),
		size:       le.Uint64(b[8:]),
		union:      le.Uint32(b[16:]),
		number:     le.Uint32(b[20:]),
		uid:        le.Uint32(b[24:]),
		gid:        le.Uint32(b[28:]),
		sec:        le.Uint64(b[32:]),
		nsec:       le.Uint32(b[40:]),
		nlink:      le.Uint32(b[44:]),
	}
	if le.Uint16(b[6:]) != 0 || le.Uint64(b[48:]) != 0 || le.Uint64(b[56:]) != 0 {
		return errors.New("reserved bytes of the inode are not zero")
	}
	return nil
}

// xattrSize returns the size in bytes of the inode's extended attributes.
func (h *header) xattrSize() int64 {
	if h.xattrCount == 0 {
		return 0
	}
	return xattrHeadSize + 4*(int64(h.xattrCount)-1)
}

// chunkFormat returns i_u of an indexed file: one chunk, the smallest size that covers the file.
// size is from 1 to maxFile.
func chunkFormat(size int64) uint32 {
	return chunkIndex | uint32(bits.Len64(uint64(size-1)>>blockBits))
}

// appendIndex appends the chunk index of a file that starts at block of device 1.
func appendIndex(b []byte, block uint32) []byte {
	b = append(b, 0, 0, 1, 0)
	return binary.LittleEndian.AppendUint32(b, block)
}

// blocksOf returns how many blocks size bytes take.
func blocksOf(size int64) int64 { return (size + BlockSize - 1) / BlockSize }

// roundUp rounds n up to a multiple of unit, a power of two.
func roundUp(n, unit int64) int64 { return (n + unit - 1) &^ (unit - 1) }
