package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"lighter/format/chunk"
)

// Scrubbed is the result of a scrub.
type Scrubbed struct {
	Bytes   int64 `json:"scrubbedBytes"`
	Damaged int64 `json:"damagedChunks"` // dropped from the cache
}

// Scrub reads each cached chunk once, from the disk and not from memory, and drops damaged ones. It
// reads at most limit bytes a second. It ends with an error when the circuit breaker opens, because
// failing reads say nothing about the records.
func (c *Cache) Scrub(ctx context.Context, limit rate.Limit) (found Scrubbed, err error) {
	if c.isAbsent() != nil {
		return found, nil
	}
	select {
	case <-c.loaded:
	case <-ctx.Done():
		return found, context.Cause(ctx)
	}
	limiter := rate.NewLimiter(limit, int(recordSize(chunk.MaxLength)))
	c.mu.RLock()
	all := c.segments()
	c.mu.RUnlock()
	for _, s := range all {
		c.mu.RLock()
		records := s.records
		c.mu.RUnlock()
		for _, r := range records {
			if err := limiter.WaitN(ctx, int(recordSize(r.length))); err != nil {
				return found, cmp.Or(context.Cause(ctx), err)
			}
			if err := c.scrub(s, r, &found); err != nil {
				return found, fmt.Errorf("scrub the cache: %w", err)
			}
		}
	}
	return found, nil
}

// scrub verifies a record if it is still in use. It returns an error if the disk does not work.
func (c *Cache) scrub(s *segment, r record, found *Scrubbed) error {
	p := place{s, r.offset}
	if !c.lies(r.key, p) {
		return nil
	}
	switch err := s.scrubRecord(r); {
	case err == nil:
		c.reads.succeeded()
	case errors.Is(err, os.ErrClosed): // evicted meanwhile
		return nil
	case err == errHangs:
		c.unanswered("scrub", s.path)
		return err
	default:
		found.Damaged++
		c.drop(r.key, p, err)
	}
	found.Bytes += recordSize(r.length)
	c.scrubbed.Add(recordSize(r.length))
	if c.reads.isOpen() {
		return errors.New("the disk fails reads")
	}
	return nil
}

// scrubRecord verifies a record as it is on the disk: it writes it back and drops it from the page
// cache first.
func (s *segment) scrubRecord(r record) error {
	size := recordSize(r.length)
	hangs := s.reads.do(func() {
		_ = s.raw.Control(func(fd uintptr) { // advice
			const written = unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
			_ = unix.SyncFileRange(int(fd), int64(r.offset), size, written)
			_ = unix.Fadvise(int(fd), int64(r.offset), size, unix.FADV_DONTNEED)
		})
	}, &s.abandoned)
	if hangs != nil {
		return hangs
	}
	return s.verify(r)
}

// verify reads a record and returns what is wrong with it.
func (s *segment) verify(r record) error {
	buffer := buffers.Get().(*[]byte)
	_, err := s.readRecord(r, (*buffer)[:recordSize(r.length)])
	if err != errHangs { // otherwise the abandoned read owns the buffer
		buffers.Put(buffer)
	}
	return err
}
