package mount

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
)

const (
	// localRate bounds how fast a local device is written, and read again, in bytes a
	// second: containers use the same disk.
	localRate = 256 << 20
	// localStride is how much of it is in the page cache at a time.
	localStride = 16 << 20
)

// eachExtent calls fn for each extent in order, with a buffer of its length: at most so
// many bytes a second, or as fast as it goes if that is 0.
func eachExtent(ctx context.Context, extents *index.Map, bytes int64, fn func(e index.Extent, buffer []byte) error) error {
	limiter := rate.NewLimiter(rate.Inf, chunk.MaxLength)
	if bytes > 0 {
		limiter.SetLimit(rate.Limit(bytes))
	}
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

// blocksOf returns how many bytes the extents take of a disk, which gives them out in
// blocks.
func blocksOf(ctx context.Context, extents *index.Map) (size int64, err error) {
	const block = 4096
	last := int64(0)
	err = eachExtent(ctx, extents, 0, func(e index.Extent, _ []byte) error {
		first, end := max(last, e.Offset/block), (e.End()+block-1)/block
		size += (end - first) * block
		last = end
		return nil
	})
	return size, err
}

// fillLocal writes a device's chunks to a new file and syncs it. What no extent covers
// takes nothing of the disk.
func (t *Trees) fillLocal(ctx context.Context, path string, extents *index.Map) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Truncate(extents.DeviceSize); err != nil {
		return err
	}
	written := stride{file: file, flags: unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER}
	err = eachExtent(ctx, extents, localRate, func(e index.Extent, buffer []byte) error {
		ref := chunk.Ref{ID: e.ID, Length: e.Length}
		if !t.locals.room.Read(ref, 0, buffer) {
			return ErrNotHere
		}
		if err := ref.Check(buffer); err != nil {
			return err
		}
		_, err := file.WriteAt(buffer, e.Offset)
		written.to(e.End())
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// verifyLocal reads a local device from the disk and verifies each chunk, at most rate
// bytes a second, or as fast as it goes if rate is 0.
func verifyLocal(ctx context.Context, path string, extents *index.Map, rate int64) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED) // advice
	read := stride{file: file}
	return eachExtent(ctx, extents, rate, func(e index.Extent, buffer []byte) error {
		if _, err := file.ReadAt(buffer, e.Offset); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read %s at %d: %w", path, e.Offset, err)
		}
		read.to(e.End())
		if sha256.Sum256(buffer) != e.ID {
			return &chunk.InvalidError{What: "local device " + path, Err: fmt.Errorf("its bytes from %d on are not those of chunk %s", e.Offset, e.ID.Short())}
		}
		return nil
	})
}

// stride keeps a file that is written or read from end to end from filling the page
// cache.
type stride struct {
	file  *os.File
	flags int // of sync_file_range(2); 0: nothing is written
	from  int64
}

// to says that the file was written or read up to there. It is advice.
func (s *stride) to(end int64) {
	if end-s.from < localStride {
		return
	}
	if s.flags != 0 {
		_ = unix.SyncFileRange(int(s.file.Fd()), s.from, end-s.from, s.flags)
	}
	_ = unix.Fadvise(int(s.file.Fd()), s.from, end-s.from, unix.FADV_DONTNEED)
	s.from = end
}
