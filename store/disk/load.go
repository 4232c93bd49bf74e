package disk

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// leftover is a segment of a previous process that is not loaded yet.
type leftover struct {
	path    string // without the suffix
	number  uint64
	written time.Time // the file's time: when it was written, or used last (saveAges)
	age     int64     // its last use, by the cache's clock
	disk    int64     // bytes on disk, with its table
	records int64     // upper bound of the number of records, from the size of its table
	newest  bool      // it has the highest number
}

func bytesOf(list []leftover) (total int64) {
	for _, l := range list {
		total += l.disk
	}
	return total
}

// count lists the segments of a previous process and their sizes, without opening them, so that the
// limit holds from the beginning. It ignores files that are not the cache's. If it succeeds, the
// cache owns lock.
func (c *Cache) count(lock *os.File) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("list the cache: %w", err)
	}
	var leftovers []leftover
	next, pins := uint64(0), int64(0)
	for _, e := range entries {
		n, kind, numbered := parseName(e.Name())
		switch {
		case numbered && kind == "segment":
			next = max(next, n+1)
			leftovers = append(leftovers, leftoverAt(segmentPath(c.dir, n), n))
		case numbered:
			c.removeStray(segmentPath(c.dir, n), kind)
		case strings.HasSuffix(e.Name(), pinSuffix):
			_, size, _ := lookAt(filepath.Join(c.dir, e.Name()))
			pins += onDisk(size)
		}
	}
	slices.SortStableFunc(leftovers, func(a, b leftover) int { return a.written.Compare(b.written) })
	for i := range leftovers {
		leftovers[i].age = c.clock.Add(1)
	}
	if len(leftovers) > 0 { // the newest is loaded first, because Put writes to it
		newest := slices.MaxFunc(leftovers, func(a, b leftover) int { return cmp.Compare(a.number, b.number) })
		leftovers = append(slices.DeleteFunc(leftovers, func(l leftover) bool { return l == newest }), newest)
		leftovers[len(leftovers)-1].newest = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lock, c.leftovers, c.next = lock, leftovers, next // nothing makes segments yet
	c.files = pins
	c.used = c.External.bytes + pins + bytesOf(leftovers)
	c.absent = nil
	return nil
}

// parseName returns the number and the kind of a segment's file, such as 0000000000.table.
func parseName(name string) (n uint64, kind string, ok bool) {
	number, kind, _ := strings.Cut(name, ".")
	n, err := strconv.ParseUint(number, 10, 63)
	return n, kind, err == nil && segmentPath("", n) == number
}

func leftoverAt(path string, number uint64) leftover {
	written, size, blocks := lookAt(path + ".segment")
	_, table, tableBlocks := lookAt(path + ".table")
	return leftover{path: path, number: number, written: written, disk: onDisk(blocks) + onDisk(tableBlocks),
		records: min(table/tableEntry, size/recordSize(1))}
}

// lookAt returns when a file was written, its size, and the bytes that it takes of the disk. It
// returns zeros for a file that cannot be used.
func lookAt(path string) (written time.Time, size, blocks int64) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return written, 0, 0
	}
	return time.Unix(stat.Mtim.Unix()), stat.Size, stat.Blocks * 512
}

// isLoaded reports whether all segments of a previous process are loaded.
func (c *Cache) isLoaded() bool {
	select {
	case <-c.loaded:
		return true
	default:
		return false
	}
}

// IsLoading implements store.Cache.
func (c *Cache) IsLoading() bool { return c.isAbsent() == nil && !c.isLoaded() }

// loader loads what a previous process left, while the cache is in use.
type loader struct {
	*Cache
	table bytes.Buffer // of the segment that is being loaded
}

// run loads the pins and the segments. When ctx ends, the remaining segments stay as they are for
// the next Open.
func (c *loader) run(ctx context.Context) {
	defer close(c.loaded)
	c.loadPins()
	c.sizeIndex()
	for c.loadNext(ctx) {
	}
	if ctx.Err() == nil {
		c.shrink()
	}
}

// sizeIndex makes room in the index for all records in the tables. An index that grows record by
// record becomes larger, and leaves garbage.
func (c *loader) sizeIndex() {
	records := int64(0)
	for _, l := range c.leftovers {
		records += l.records
	}
	if records == 0 {
		return
	}
	large := indexOf(records) // it takes a while, so not under mu
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(large.spots, c.index.spots)
	large.segments = c.index.segments
	c.index = large
}

// loadNext loads the last of the segments that are left, and reports whether there was one.
func (c *loader) loadNext(ctx context.Context) bool {
	if len(c.leftovers) == 0 || ctx.Err() != nil {
		return false
	}
	last := len(c.leftovers) - 1
	l := c.leftovers[last]
	s, err := c.loadSegment(ctx, l)
	if s == nil && ctx.Err() != nil {
		return false
	}
	if err != nil {
		c.log.Warn("cache segment unusable", "segment", l.path, "err", err)
	}
	c.mu.Lock()
	c.leftovers = c.leftovers[:last]
	c.used -= l.disk
	if s != nil {
		c.used += s.cost()
		c.sealed = append(c.sealed, s)
		c.index.include(s)
	}
	c.mu.Unlock()
	if s == nil {
		return true
	}
	c.addAll(s)
	if l.newest {
		c.reopen(s)
	}
	return true
}

// addAll adds a segment's records to the index, except for chunks that were put meanwhile.
func (c *loader) addAll(s *segment) {
	for batch := range slices.Chunk(s.records, batchSize) {
		c.mu.Lock()
		for _, r := range batch {
			if !c.index.has(r.key) {
				c.index.set(r.key, place{s, r.offset})
			}
		}
		c.mu.Unlock()
	}
}

// removeStray removes a table that a crash left without its segment, or unfinished.
func (c *Cache) removeStray(path, kind string) {
	_, gone := os.Lstat(path + ".segment")
	if kind == "table"+newSuffix || kind == "table" && errors.Is(gone, os.ErrNotExist) {
		if err := os.Remove(path + "." + kind); err != nil {
			c.log.Warn("stray cache table cannot be removed", "segment", path, "err", err)
		}
	}
}

// shrink evicts segments until a limit that was made smaller holds. It evicts segments without
// pinned chunks first, and then others: the limit counts more than the pins.
func (c *loader) shrink() {
	c.slow.Lock()
	defer c.slow.Unlock()
	for _, evenPinned := range []bool{false, true} {
		for _, s := range c.byAge() {
			c.mu.RLock()
			fits := c.fits(0)
			c.mu.RUnlock()
			if fits {
				return
			}
			if evenPinned || c.pinnedIn(s) == 0 {
				c.evict(s, nil)
			}
		}
	}
}

// loadSegment reads a segment's table, or scans the segment. It removes an empty segment, and
// returns nil for it. It also returns nil if ctx ends first.
func (c *loader) loadSegment(ctx context.Context, l leftover) (*segment, error) {
	file, err := os.OpenFile(l.path+".segment", os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, errors.Join(err, errors.New("not a regular file"))
	}
	s, err := newSegment(l.path, file, c.reads)
	if err != nil {
		return nil, err
	}
	s.size = info.Size()
	s.used.Store(l.age)
	if s.readTable(&c.table) == nil {
		if l.newest {
			s.ids = idsIn(c.table.Bytes())
		}
	} else {
		s.records, s.ids = nil, nil
		s.scan(ctx)
		if ctx.Err() != nil {
			return nil, s.file.Close()
		}
		s.dropTorn()
		if len(s.records) > 0 { // so that the next start need not scan
			if err := s.writeTable(s.records, s.ids); err != nil {
				c.log.Warn("cache table cannot be written", "segment", s.path, "err", err)
			}
		}
	}
	if len(s.records) == 0 {
		return nil, errors.Join(s.unlink(), s.file.Close())
	}
	if !l.newest { // only writeTable needs the IDs
		s.ids = nil
	}
	s.cutOff()
	s.reserved, s.pinned = int64(len(s.records)), uncounted
	return s, nil
}

// cutOff truncates the file after the last record.
func (s *segment) cutOff() {
	end := int64(0)
	for _, r := range s.records {
		end = max(end, int64(r.offset)+recordSize(r.length))
	}
	if end == s.size || s.file.Truncate(end) == nil { // if it fails, the bytes count
		s.size = end
	}
}

// reopen makes the newest segment the active one if it has room and Put has begun no other segment
// meanwhile. Without this, each restart would leave a small segment. reopen removes the table,
// because records will be added.
func (c *loader) reopen(s *segment) {
	c.slow.Lock() // so that no other segment begins
	defer c.slow.Unlock()
	c.mu.RLock()
	room := c.active == nil && s.size <= c.segmentSize/2 && c.fits(2*c.segmentSize)
	c.mu.RUnlock()
	if !room {
		return
	}
	err := s.file.Truncate(c.segmentSize)
	if err == nil {
		err = os.Remove(s.path + ".table")
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.log.Warn("newest cache segment not continued", "segment", s.path, "err", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed = slices.DeleteFunc(c.sealed, func(other *segment) bool { return other == s })
	c.active = s
}

// scan finds the records of a segment without a table. It ends at the first header that is not
// valid: records after it were never reported as stored, or are lost.
func (s *segment) scan(ctx context.Context) {
	var h [recordHeader]byte
	for at := int64(0); at < s.size && ctx.Err() == nil; {
		if _, err := s.file.ReadAt(h[:], at); err != nil {
			return
		}
		id, length, ok := decodeHeader(h[:])
		if !ok || at+recordSize(length) > s.size {
			return
		}
		s.add(chunk.Ref{ID: id, Length: length}, uint32(at))
		at += recordSize(length)
	}
}

// dropTorn drops records at the end that are incomplete because their writer was killed.
func (s *segment) dropTorn() {
	for i := len(s.records) - 1; i >= max(0, len(s.records)-unsure); i-- {
		r := s.records[i]
		if err := s.verify(r); err == errHangs { // a reader verifies the record again
			return
		} else if err != nil {
			s.records = slices.Delete(s.records, i, i+1)
			s.ids = slices.Delete(s.ids, i*chunk.Size, (i+1)*chunk.Size)
		}
	}
}
