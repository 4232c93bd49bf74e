package trees

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/layer"
)

// diskBlock is the unit in which a disk is allocated, in bytes.
const diskBlock = 4096

// eachExtent calls fn for each extent in order, with a buffer of the extent's length. It passes on
// at most limit bytes a second.
func eachExtent(
	ctx context.Context, extents *index.Map, limit rate.Limit, fn func(e index.Extent, buffer []byte) error,
) error {
	limiter := rate.NewLimiter(limit, chunk.MaxLength)
	buffer := make([]byte, chunk.MaxLength)
	for i := range extents.Extents {
		e, err := extents.Extent(i)
		if err == nil {
			err = limiter.WaitN(ctx, int(e.Length))
		}
		if err == nil {
			err = fn(e, buffer[:e.Length])
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// sizeOnDisk returns the number of bytes in the disk blocks that the extents touch. The error is
// ErrDerived if the bytes of an extent could not be verified.
func sizeOnDisk(ctx context.Context, extents *index.Map) (size int64, err error) {
	counted := int64(0) // the blocks before this block number are counted
	err = eachExtent(ctx, extents, rate.Inf, func(e index.Extent, _ []byte) error {
		if layer.IsDerived(e.ID) {
			return ErrDerived
		}
		first, end := max(counted, e.Offset/diskBlock), (e.End()+diskBlock-1)/diskBlock
		size += (end - first) * diskBlock
		counted = end
		return nil
	})
	return size, err
}

// fillLocal writes a device's chunks to a new file and syncs it. The file has holes where the
// device has no extents.
func fillLocal(ctx context.Context, path string, extents *index.Map, room Room) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Truncate(extents.DeviceSize); err != nil {
		return err
	}
	written := stride{file: file, isWritten: true}
	err = eachExtent(ctx, extents, localRate, func(e index.Extent, buffer []byte) error {
		ref := chunk.Ref{ID: e.ID, Length: e.Length}
		if !room.Read(ref, 0, buffer) {
			return ErrNotCached
		}
		if err := ref.Check(buffer); err != nil {
			return err
		}
		_, err := file.WriteAt(buffer, e.Offset)
		written.reached(e.End())
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// verifyLocal reads a local device from the disk, at most limit bytes a second, and verifies each
// chunk.
func verifyLocal(ctx context.Context, path string, extents *index.Map, limit rate.Limit) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED) // only advice
	read := stride{file: file}
	return eachExtent(ctx, extents, limit, func(e index.Extent, buffer []byte) error {
		if _, err := file.ReadAt(buffer, e.Offset); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read %s at %d: %w", path, e.Offset, err)
		}
		read.reached(e.End())
		if sha256.Sum256(buffer) != e.ID {
			return &chunk.InvalidError{What: "local device " + path,
				Err: fmt.Errorf("the bytes at %d are not those of chunk %s", e.Offset, e.ID.Short())}
		}
		return nil
	})
}

// stride drops the pages of a file from the page cache while it is read or written in order.
type stride struct {
	file      *os.File
	isWritten bool
	from      int64 // pages below this offset were dropped
}

// reached is called when the file was read or written up to end. It drops the pages before end from
// memory. Errors do not matter: dropping pages is only advice.
func (s *stride) reached(end int64) {
	if end-s.from < localStride {
		return
	}
	if s.isWritten { // dirty pages cannot be dropped
		const flags = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
		_ = unix.SyncFileRange(int(s.file.Fd()), s.from, end-s.from, flags)
	}
	_ = unix.Fadvise(int(s.file.Fd()), s.from, end-s.from, unix.FADV_DONTNEED)
	s.from = end
}
