package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Scrubbed is the result of a scrub.
type Scrubbed struct {
	Bytes   int64 `json:"scrubbedBytes"`
	Damaged int64 `json:"damagedChunks"` // dropped from the cache
}

// Scrub reads each cached chunk once, from the disk and not from memory, and drops damaged ones. It
// reads at most rate bytes a second, or as fast as possible if rate is 0. It ends with an error
// when the circuit breaker opens, because failing reads say nothing about the records.
func (c *Cache) Scrub(ctx context.Context, rate int64) (found Scrubbed, err error) {
	if c.isAbsent() != nil {
		return found, nil
	}
	select {
	case <-c.loaded:
	case <-ctx.Done():
		return found, context.Cause(ctx)
	}
	for _, s := range c.all() {
		c.mu.RLock()
		records := s.records
		c.mu.RUnlock()
		for _, r := range records {
			begun := time.Now()
			p := place{s, r.offset}
			if !c.lies(r.key, p) {
				continue
			}
			err := s.scrubRecord(r)
			if errors.Is(err, os.ErrClosed) { // evicted meanwhile
				break
			}
			if err == errHangs {
				c.unanswered("scrub", s.path)
				return found, fmt.Errorf("scrub the cache: %w", err)
			}
			if err != nil {
				found.Damaged++
				c.dropRecord(r, p, err)
			} else {
				c.reads.succeeded()
			}
			if c.reads.isOpen() {
				return found, errors.New("scrub the cache: its disk fails reads")
			}
			size := recordSize(r.length)
			found.Bytes += size
			c.scrubbed.Add(size)
			wait := time.Duration(0)
			if rate > 0 {
				wait = time.Duration(float64(size)/float64(rate)*float64(time.Second)) - time.Since(begun)
			}
			select {
			case <-ctx.Done():
				return found, context.Cause(ctx)
			case <-time.After(max(wait, 0)):
			}
		}
	}
	return found, nil
}

// all returns all segments, sealed or not.
func (c *Cache) all() []*segment {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.segments()
}

// segments is all for a caller that holds mu.
func (c *Cache) segments() []*segment {
	list := slices.Clone(c.sealed)
	for _, s := range []*segment{c.active, c.kept} {
		if s != nil {
			list = append(list, s)
		}
	}
	return list
}

// scrubRecord verifies a record as it is on the disk: it writes it back and drops it from the page
// cache first.
func (s *segment) scrubRecord(r record) error {
	size := recordSize(r.length)
	hangs := s.reads.do(func() {
		_ = s.raw.Control(func(fd uintptr) { // advice
			_ = unix.SyncFileRange(int(fd), int64(r.offset), size, unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
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
