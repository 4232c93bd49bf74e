package erofs

import (
	"errors"
	"fmt"
	"io"

	"lighter/format/tree"
)

// ErrInvalid means that Write cannot have written the image. Other errors mean that the image could
// not be read.
var ErrInvalid = errors.New("invalid metadata image")

// Image is an open metadata image. It is safe for concurrent use.
type Image struct {
	r     io.ReaderAt
	size  int64
	super superblock
}

// Open reads and checks the superblock of an image of size bytes. Errors wrap ErrInvalid or are the
// reader's.
func Open(r io.ReaderAt, size int64) (*Image, error) {
	if size < 2*BlockSize || size%BlockSize != 0 || size > MaxSize {
		return nil, fmt.Errorf("%w: its size is %d bytes", ErrInvalid, size)
	}
	block := make([]byte, BlockSize)
	if err := readFull(r, block, 0); err != nil {
		return nil, err
	}
	m := &Image{r: r, size: size}
	if err := m.super.check(block, size); err != nil {
		return nil, err
	}
	return m, nil
}

// Inodes returns how many inodes the image has, by its superblock. Walk compares it with those that
// are there.
func (m *Image) Inodes() uint64 { return m.super.inodes }

// CheckFirstBlock checks the first block of an image of size bytes for a device of deviceSize
// bytes. It accepts only what Write writes. Errors wrap ErrInvalid.
func CheckFirstBlock(block []byte, size, deviceSize int64) error {
	var s superblock
	if err := s.check(block, size); err != nil {
		return err
	}
	if got := int64(s.deviceBlocks) * BlockSize; got != deviceSize {
		return fmt.Errorf("%w: it is for a device of %d bytes, not of %d", ErrInvalid, got, deviceSize)
	}
	return nil
}

func (s *superblock) check(block []byte, size int64) error {
	if err := s.decode(block); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if int64(s.blocks)*BlockSize != size {
		return fmt.Errorf("%w: its superblock says %d blocks, but it has %d bytes", ErrInvalid, s.blocks, size)
	}
	return nil
}

// Inode is an inode of an image.
type Inode struct {
	Nid     uint64 // the same for all hard links; the inode number of stat(2)
	Mode    uint32 // type and permissions, as in st_mode
	UID     uint32
	GID     uint32
	Nlink   uint32
	Mtime   tree.Time
	Rdev    uint64       // of block and character devices, as in st_rdev
	Size    int64        // in bytes; for a directory that of its entries, for devices, FIFOs and sockets 0
	Link    string       // target of a symlink
	Xattrs  []tree.Xattr // sorted by name
	Inline  []byte       // of a regular file that is not on the device
	Device  bool         // a regular file on the device
	Address uint64       // the file's offset on the device, in bytes
}

func readFull(r io.ReaderAt, b []byte, offset int64) error {
	if n, err := r.ReadAt(b, offset); n < len(b) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read metadata image at %d: %w", offset, err)
	}
	return nil
}

// pager reads an image through a small cache, because neighbours in a walk are often in the same
// block.
type pager struct {
	r       io.ReaderAt
	size    int64
	has     []int64 // the numbers of the cached blocks; 0 means none (block 0 is not cached)
	blocks  [][BlockSize]byte
	scratch []byte
}

func newPager(m *Image) *pager {
	n := min(m.size/BlockSize, 256)
	return &pager{r: m.r, size: m.size, has: make([]int64, n), blocks: make([][BlockSize]byte, n)}
}

// bytes returns part of the image. The slice is valid until the next call.
func (p *pager) bytes(offset, n int64) ([]byte, error) {
	if offset < BlockSize || n < 0 || offset > p.size || n > p.size-offset {
		return nil, fmt.Errorf("%w: bytes %d to %d are not in it", ErrInvalid, offset, offset+n)
	}
	if n == 0 {
		return nil, nil
	}
	in := offset % BlockSize
	if in+n <= BlockSize {
		b, err := p.block(offset / BlockSize)
		if err != nil {
			return nil, err
		}
		return b[in : in+n], nil
	}
	p.scratch = append(p.scratch[:0], make([]byte, n)...)
	return p.scratch, readFull(p.r, p.scratch, offset)
}

func (p *pager) block(number int64) ([]byte, error) {
	i := number % int64(len(p.has))
	if p.has[i] != number {
		p.has[i] = 0
		if err := readFull(p.r, p.blocks[i][:], number*BlockSize); err != nil {
			return nil, err
		}
		p.has[i] = number
	}
	return p.blocks[i][:], nil
}
