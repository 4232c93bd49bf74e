package disk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
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

// leftover is a segment that a former process left, and that is not loaded yet.
type leftover struct {
	path    string // without the suffix
	number  uint64
	written time.Time // its file, or when it was used last: keepAges has set it
	age     int64     // by the cache's clock
	disk    int64     // bytes that it takes, with its table
	records int64     // at most, in its table
	newest  bool      // it was written last
}

func bytesOf(list []leftover) (total int64) {
	for _, l := range list {
		total += l.disk
	}
	return total
}

// count looks at what a former process left, without opening it: by its size, what is
// put in from now on keeps to the limit. Files that are not ours are left alone. The cache
// holds lock from now on.
func (c *Cache) count(lock *os.File) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("list the cache: %w", err)
	}
	var left []leftover
	next, pins := uint64(0), int64(0)
	for _, e := range entries {
		c.removeStray(e.Name())
		if strings.HasSuffix(e.Name(), pinSuffix) {
			_, size, _ := lookAt(filepath.Join(c.dir, e.Name()))
			pins += onDisk(size)
		}
		name, ours := strings.CutSuffix(e.Name(), ".segment")
		n, err := strconv.ParseUint(name, 10, 63)
		path := segmentPath(c.dir, n)
		if err != nil || !ours || filepath.Base(path) != name {
			continue
		}
		next = max(next, n+1)
		left = append(left, leftoverAt(path, n))
	}
	slices.SortStableFunc(left, func(a, b leftover) int { return a.written.Compare(b.written) })
	for i := range left {
		left[i].age = c.clock.Add(1)
	}
	if len(left) > 0 { // the newest is loaded first: what comes is put into it
		newest := slices.MaxFunc(left, func(a, b leftover) int { return cmp.Compare(a.number, b.number) })
		left = append(slices.DeleteFunc(left, func(l leftover) bool { return l == newest }), newest)
		left[len(left)-1].newest = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lock, c.left, c.next = lock, left, next
	c.pinFiles = pins
	c.used = c.beside + pins + bytesOf(left)
	c.absent = nil
	return nil
}

func leftoverAt(path string, number uint64) leftover {
	written, size, blocks := lookAt(path + ".segment")
	_, table, tableBlocks := lookAt(path + ".table")
	return leftover{path: path, number: number, written: written, disk: onDisk(blocks) + onDisk(tableBlocks),
		records: min(table/tableEntry, size/recordSize(1))}
}

// lookAt returns when a file was written, how long it is, and what it takes of the disk: of
// one that cannot be used, nothing.
func lookAt(path string) (written time.Time, size, blocks int64) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return written, 0, 0
	}
	return time.Unix(stat.Mtim.Unix()), stat.Size, stat.Blocks * 512
}

// isLoaded tells whether all is known that was there when the cache was opened.
func (c *Cache) isLoaded() bool {
	select {
	case <-c.loaded:
		return true
	default:
		return false
	}
}

// IsLoading tells whether there may be chunks that are not known yet: the cache was opened a
// moment ago.
func (c *Cache) IsLoading() bool { return c.isAbsent() == nil && !c.isLoaded() }

// load takes over what a former process left, while the cache is used, until ctx is done.
// What it does not get to stays as it is, for the next Open.
func (c *Cache) load(ctx context.Context) {
	defer close(c.loaded)
	c.loadPins()
	c.sizeIndex()
	var table bytes.Buffer
	for c.loadNext(ctx, &table) {
	}
	if ctx.Err() == nil {
		c.shrink()
	}
}

// sizeIndex makes the index as large as the tables say that it will be: one that grows
// gets larger than that, and leaves garbage.
func (c *Cache) sizeIndex() {
	records := int64(0)
	for _, l := range c.left {
		records += l.records
	}
	if records == 0 {
		return
	}
	large := indexOf(records) // takes a while: nobody waits for it
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(large.spots, c.index.spots)
	large.segments = c.index.segments
	c.index = large
}

// loadNext loads the last segment of those that are left, and tells whether there was
// one. It keeps the table for the next to be read into.
func (c *Cache) loadNext(ctx context.Context, table *bytes.Buffer) bool {
	if len(c.left) == 0 || ctx.Err() != nil {
		return false
	}
	last := len(c.left) - 1
	l := c.left[last]
	s, err := c.loadSegment(ctx, l, table)
	if s == nil && ctx.Err() != nil {
		return false
	}
	if err != nil {
		c.log.Warn("a cache segment cannot be used", "segment", l.path, "cause", err)
	}
	c.mu.Lock()
	c.used -= l.disk
	if s != nil {
		c.used += s.cost()
		c.sealed = append(c.sealed, s)
		c.index.include(s)
		s.changed++ // what is pinned in it was not counted
	}
	c.mu.Unlock()
	if s != nil {
		c.know(s)
		if l.newest {
			c.reopen(s)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = c.left[:last]
	return true
}

// know puts a segment's chunks into the index. A chunk that came while the cache was
// loaded stays where it is. Readers get their turns meanwhile, as in visit.
func (c *Cache) know(s *segment) {
	for some := range slices.Chunk(s.records, 256) {
		c.mu.Lock()
		for _, r := range some {
			if !c.index.has(r.key) {
				c.index.set(r.key, place{s, r.offset})
				s.live++
			}
		}
		c.mu.Unlock()
	}
}

// removeStray removes what a crash has left of a segment that was being removed
// or of a table that was being written.
func (c *Cache) removeStray(name string) {
	number, kind, _ := strings.Cut(name, ".")
	n, err := strconv.ParseUint(number, 10, 63)
	path := segmentPath(c.dir, n)
	if err != nil || filepath.Base(path) != number {
		return
	}
	_, gone := os.Lstat(path + ".segment")
	if kind == "table.new" || kind == "table" && errors.Is(gone, os.ErrNotExist) {
		if err := os.Remove(filepath.Join(c.dir, name)); err != nil {
			c.log.Warn("remove what is left of a cache segment", "cause", err)
		}
	}
}

// shrink gives up what is above the limit, because it was larger before: first
// where nothing is pinned, but the limit comes before the pins.
func (c *Cache) shrink() {
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

// loadSegment reads what is in a segment, or removes it if there is nothing in it. It
// returns no segment if ctx was done before it was through.
func (c *Cache) loadSegment(ctx context.Context, l leftover, table *bytes.Buffer) (*segment, error) {
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
	if s.readTable(table) == nil {
		if l.newest {
			s.ids = idsIn(table.Bytes())
		}
	} else {
		s.records, s.ids = nil, nil
		s.scan(ctx)
		if ctx.Err() != nil {
			return nil, s.file.Close()
		}
		s.dropTorn()
		if len(s.records) > 0 { // the next start shall not scan again
			if err := s.writeTable(s.records, s.ids); err != nil {
				c.log.Warn("write the table of a cache segment", "cause", err)
			}
		}
	}
	if len(s.records) == 0 {
		return nil, errors.Join(s.unlink(), s.file.Close())
	}
	if !l.newest { // it has its table
		s.ids = nil
	}
	s.cutOff()
	s.reserved = int64(len(s.records))
	return s, nil
}

// cutOff frees what is behind the last record, if anything: nobody finds it.
func (s *segment) cutOff() {
	end := int64(0)
	for _, r := range s.records {
		end = max(end, int64(r.offset)+recordSize(r.length))
	}
	if end == s.size || s.file.Truncate(end) == nil { // else it counts
		s.size = end
	}
}

// reopen goes on with the newest segment if there is room in it, and no other was begun
// meanwhile: or else each restart would leave a small one. Its table goes, which would not
// know of what is added.
func (c *Cache) reopen(s *segment) {
	c.slow.Lock() // so that nobody begins another
	defer c.slow.Unlock()
	c.mu.RLock()
	room := c.active == nil && c.spare == nil && s.size <= c.segmentSize/2 && c.fits(2*c.segmentSize)
	c.mu.RUnlock()
	if !room {
		return
	}
	err := s.file.Truncate(c.segmentSize)
	if err == nil {
		err = os.Remove(s.path + ".table")
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.log.Warn("the newest cache segment stays as it is", "cause", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed = slices.DeleteFunc(c.sealed, func(other *segment) bool { return other == s })
	c.active = s
}

// scan walks the records of a segment that was not sealed. It ends at the first
// that is not whole: what lies behind was never reported as stored, or is lost.
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

// unsure is how many of the last records of a segment that was not sealed may not
// be whole: as many as were written at a time, and some.
const unsure = 8

// dropTorn drops the last records that are not whole: who wrote them was killed.
func (s *segment) dropTorn() {
	for i := len(s.records) - 1; i >= max(0, len(s.records)-unsure); i-- {
		r := s.records[i]
		if err := s.verify(r); err == errHangs { // readers find it out
			return
		} else if err != nil {
			s.records = slices.Delete(s.records, i, i+1)
			s.ids = slices.Delete(s.ids, i*chunk.Size, (i+1)*chunk.Size)
		}
	}
}

// writeTable writes the table that spares the next start a scan. ids are the
// records' whole IDs.
func (s *segment) writeTable(records []record, ids []byte) error {
	b := make([]byte, 0, len(records)*tableEntry+tableFooter)
	for i, r := range records {
		b = append(b, ids[i*chunk.Size:(i+1)*chunk.Size]...)
		b = binary.LittleEndian.AppendUint32(b, r.length)
		b = binary.LittleEndian.AppendUint32(b, r.offset)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(records)))
	b = binary.LittleEndian.AppendUint32(b, tableMagic)
	temp := s.path + ".table.new"
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, s.path+".table")
}

// readTable reads the table of a segment into table, and the records from there.
func (s *segment) readTable(table *bytes.Buffer) error {
	file, err := os.Open(s.path + ".table")
	if err != nil {
		return err
	}
	defer file.Close()
	table.Reset()
	if _, err := table.ReadFrom(file); err != nil {
		return err
	}
	return s.decodeTable(table.Bytes())
}

func (s *segment) decodeTable(b []byte) error {
	if len(b) < tableFooter {
		return io.ErrUnexpectedEOF
	}
	footer := b[len(b)-tableFooter:]
	entries := b[:len(b)-tableFooter]
	n := binary.LittleEndian.Uint32(footer[4:])
	if binary.LittleEndian.Uint32(footer[8:]) != tableMagic || int64(n)*tableEntry != int64(len(entries)) ||
		crc32.Checksum(entries, castagnoli) != binary.LittleEndian.Uint32(footer) {
		return errDamaged
	}
	s.records = make([]record, 0, n)
	for ; len(entries) > 0; entries = entries[tableEntry:] {
		r := record{key: keyOf(chunk.ID(entries[:chunk.Size])),
			length: binary.LittleEndian.Uint32(entries[chunk.Size:]), offset: binary.LittleEndian.Uint32(entries[chunk.Size+4:])}
		if r.length == 0 || r.length > chunk.MaxLength || int64(r.offset)+recordSize(r.length) > s.size {
			return errDamaged
		}
		s.records = append(s.records, r)
	}
	return nil
}

// idsIn returns the whole IDs of a table that decodeTable has taken.
func idsIn(table []byte) []byte {
	ids := make([]byte, 0, len(table)/tableEntry*chunk.Size)
	for ; len(table) > tableFooter; table = table[tableEntry:] {
		ids = append(ids, table[:chunk.Size]...)
	}
	return ids
}
