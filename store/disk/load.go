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

	"lighter/format/chunk"
)

// load takes over what a former process left. Files that are not ours are left
// alone; segments that cannot be read are as if they were empty.
func (c *Cache) load() error {
	names, err := filepath.Glob(filepath.Join(c.dir, "*.segment"))
	if err != nil {
		return fmt.Errorf("list the cache: %w", err)
	}
	slices.Sort(names)
	for _, name := range names {
		path := strings.TrimSuffix(name, ".segment")
		n, err := strconv.ParseUint(filepath.Base(path), 10, 63)
		if err != nil || segmentPath(c.dir, n) != path {
			continue
		}
		c.next = max(c.next, n+1)
		if err := c.loadSegment(path); err != nil {
			c.log.Warn("a cache segment cannot be used", "segment", path, "cause", err)
		}
	}
	for c.used > c.limit && c.evictOldest() {
	}
	return nil
}

func (c *Cache) loadSegment(path string) error {
	file, err := os.OpenFile(path+".segment", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		file.Close()
		return errors.Join(err, errors.New("not a regular file"))
	}
	s := &segment{path: path, file: file, size: info.Size()}
	scanned := false
	if err := s.readTable(); err != nil {
		s.records, s.ids = nil, nil
		s.scan()
		scanned = true
	}
	if len(s.records) == 0 {
		return s.remove()
	}
	if scanned { // the next start shall not scan again
		if err := s.writeTable(); err != nil {
			c.log.Warn("write the table of a cache segment", "cause", err)
		}
	}
	for _, r := range s.records {
		c.index[r.key] = place{s, r.offset}
	}
	s.used.Store(c.clock.Add(1))
	c.sealed = append(c.sealed, s)
	c.used += s.size
	return nil
}

// scan walks the records of a segment that was not sealed. It ends at the first
// that is not whole: what lies behind was never reported as stored, or is lost.
func (s *segment) scan() {
	var h [recordHeader]byte
	for at := int64(0); at < s.size; {
		if _, err := s.file.ReadAt(h[:], at); err != nil {
			return
		}
		length := binary.LittleEndian.Uint32(h[4:])
		if binary.LittleEndian.Uint32(h[:]) != recordMagic || length == 0 || length > chunk.MaxLength ||
			crc32.Checksum(h[:40], castagnoli) != binary.LittleEndian.Uint32(h[40:]) ||
			at+recordSize(length) > s.size {
			return
		}
		s.add(chunk.Ref{ID: chunk.ID(h[8:40]), Length: length}, uint32(at))
		at += recordSize(length)
	}
}

// writeTable writes the table that spares the next start a scan, and lets go of
// what only it needs.
func (s *segment) writeTable() error {
	b := make([]byte, 0, len(s.records)*tableEntry+tableFooter)
	for i, r := range s.records {
		b = append(b, s.ids[i*chunk.Size:(i+1)*chunk.Size]...)
		b = binary.LittleEndian.AppendUint32(b, r.length)
		b = binary.LittleEndian.AppendUint32(b, r.offset)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.records)))
	b = binary.LittleEndian.AppendUint32(b, tableMagic)
	s.ids = nil
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
