package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// load takes over what a former process left. Files that are not ours are left
// alone; segments that cannot be read are as if they were empty.
func (c *Cache) load() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("list the cache: %w", err)
	}
	var newest *segment
	ages := map[*segment]time.Time{}
	for _, e := range entries { // by name, so by number, and a segment before its table
		c.removeStray(e.Name())
		name, ours := strings.CutSuffix(e.Name(), ".segment")
		n, err := strconv.ParseUint(name, 10, 63)
		path := segmentPath(c.dir, n)
		if err != nil || !ours || filepath.Base(path) != name {
			continue
		}
		c.next = max(c.next, n+1)
		s, age, err := c.loadSegment(path)
		if err != nil {
			c.log.Warn("a cache segment cannot be used", "segment", path, "cause", err)
			continue
		}
		if s != nil {
			newest, ages[s] = s, age
		}
	}
	slices.SortStableFunc(c.sealed, func(a, b *segment) int { return ages[a].Compare(ages[b]) })
	for _, s := range c.sealed {
		s.used.Store(c.clock.Add(1))
	}
	c.loadPins()
	c.shrink()
	if newest != nil && !newest.gone {
		c.reopen(newest)
	}
	for _, s := range c.sealed {
		s.ids = nil
	}
	return nil
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
	for _, evenPinned := range []bool{false, true} {
		for _, s := range c.byAge() {
			if c.fits(0) {
				return
			}
			if evenPinned || c.pinnedIn(s) == 0 {
				c.evict(s, nil)
			}
		}
	}
}

// loadSegment adds a segment to the sealed ones, or removes it if there is
// nothing in it, and says when it was last used.
func (c *Cache) loadSegment(path string) (_ *segment, used time.Time, err error) {
	file, err := os.OpenFile(path+".segment", os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, used, err
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, used, errors.Join(err, errors.New("not a regular file"))
	}
	s, err := newSegment(path, file)
	if err != nil {
		return nil, used, err
	}
	s.size = info.Size()
	if s.readTable() != nil {
		s.records, s.ids = nil, nil
		s.scan()
		s.dropTorn()
		if len(s.records) > 0 { // the next start shall not scan again
			if err := s.writeTable(s.records, s.ids); err != nil {
				c.log.Warn("write the table of a cache segment", "cause", err)
			}
		}
	}
	if len(s.records) == 0 {
		return nil, used, errors.Join(s.unlink(), s.file.Close())
	}
	s.cutOff()
	s.reserved = int64(len(s.records))
	for _, r := range s.records {
		c.set(r.key, place{s, r.offset})
	}
	c.sealed = append(c.sealed, s)
	c.used += s.cost()
	return s, info.ModTime(), nil
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

// reopen goes on with the newest segment if there is room in it: or else each
// restart would leave a small one. Its table goes, which would not know of what is
// added.
func (c *Cache) reopen(s *segment) {
	if s.size > c.segmentSize/2 || !c.fits(2*c.segmentSize) {
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
	c.sealed = slices.DeleteFunc(c.sealed, func(other *segment) bool { return other == s })
	c.active = s
}

// scan walks the records of a segment that was not sealed. It ends at the first
// that is not whole: what lies behind was never reported as stored, or is lost.
func (s *segment) scan() {
	var h [recordHeader]byte
	for at := int64(0); at < s.size; {
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
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	for i := len(s.records) - 1; i >= max(0, len(s.records)-unsure); i-- {
		r := s.records[i]
		if _, err := s.readRecord(r, (*buffer)[:recordSize(r.length)]); err != nil {
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

func (s *segment) readTable() error {
	b, err := os.ReadFile(s.path + ".table")
	if err != nil {
		return err
	}
	return s.decodeTable(b)
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
	s.records, s.ids = make([]record, 0, n), make([]byte, 0, int(n)*chunk.Size)
	for ; len(entries) > 0; entries = entries[tableEntry:] {
		r := record{key: keyOf(chunk.ID(entries[:chunk.Size])),
			length: binary.LittleEndian.Uint32(entries[chunk.Size:]), offset: binary.LittleEndian.Uint32(entries[chunk.Size+4:])}
		if r.length == 0 || r.length > chunk.MaxLength || int64(r.offset)+recordSize(r.length) > s.size {
			return errDamaged
		}
		s.records, s.ids = append(s.records, r), append(s.ids, entries[:chunk.Size]...)
	}
	return nil
}
