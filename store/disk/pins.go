package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lighter/format/chunk"
)

// maxPins bounds the pins: each is asked about each record that is freed.
const maxPins = 64

// pin is a set of chunks that are not evicted.
type pin struct {
	id    chunk.ID
	label string
	set   *Set
}

// Pin is what a cache says of one.
type Pin struct {
	ID    chunk.ID `json:"id"`
	Label string   `json:"label"`
	Bytes int64    `json:"bytes"`     // of its chunks
	Here  int64    `json:"hereBytes"` // of those that are in the cache
}

// Pinning keeps pins in the cache's directory as well as in memory.
const (
	pinMagic  = 0x3150544c // "LTP1"
	pinSuffix = ".pin"
	pinEntry  = len(key{}) + 4
	maxLabel  = 4096
)

// Pin keeps a set of chunks from being evicted, those that are here and those
// that come, under an ID, across restarts. A former pin of that ID is replaced. All
// pins may take half of the cache.
func (c *Cache) Pin(id chunk.ID, label string, set *Set) error {
	if cause := c.isAbsent(); cause != nil {
		return fmt.Errorf("there is no cache: %w", cause)
	}
	set.sort()
	set.chunks = slices.DeleteFunc(set.chunks, func(m member) bool { return m.length == 0 })
	if len(label) > maxLabel {
		return fmt.Errorf("the name of a pin is longer than %d bytes", maxLabel)
	}
	<-c.loaded
	c.slow.Lock()
	defer c.slow.Unlock()
	others := c.pinsBut(id)
	if len(others) >= maxPins {
		return fmt.Errorf("there are %d pins already, which is the most: unpin one", maxPins)
	}
	p := &pin{id, label, set}
	before, more := pinnedBytes(others), pinnedBeside(others, p)
	if half := (c.limits.Size - c.besides()) / 2; before+more > half {
		return fmt.Errorf("it takes %d MiB beside the %d MiB that are pinned, and pins may take half of what local devices leave of the cache, %d MiB: "+
			"unpin something, or make the cache larger", more>>20, before>>20, half>>20)
	}
	if !c.takeRoom(p.fileSize()) {
		return fmt.Errorf("remember a pin: %w", errNoRoom)
	}
	if err := c.savePin(p); err != nil {
		c.setPins(c.pins, c.pinned) // the room for its file is free again
		return fmt.Errorf("remember a pin: %w", err)
	}
	c.setPins(append(others, p), before+more)
	return nil
}

// takeRoom takes room for a pin's file, and sees to it that there is a segment's
// worth beside it to move what is pinned to. The caller holds slow.
func (c *Cache) takeRoom(file int64) bool {
	for {
		c.mu.Lock()
		ok := c.fits(c.segmentSize + file)
		if ok {
			c.used += file
			c.pinFiles += file
		}
		c.mu.Unlock()
		if ok || !c.evictOldest() {
			return ok
		}
	}
}

// Unpin undoes Pin, and tells whether there was a pin.
func (c *Cache) Unpin(id chunk.ID) (bool, error) {
	if c.isAbsent() != nil {
		return false, nil
	}
	<-c.loaded
	c.slow.Lock()
	defer c.slow.Unlock()
	others := c.pinsBut(id)
	if len(others) == len(c.pins) {
		return false, nil
	}
	if err := os.Remove(c.pinPath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return true, fmt.Errorf("forget a pin: %w", err)
	}
	c.setPins(others, pinnedBytes(others))
	return true, c.syncDir()
}

// Pins lists the pins, in the order in which they were made or found.
func (c *Cache) Pins() []Pin {
	c.mu.RLock()
	pins := c.pins
	c.mu.RUnlock()
	list := make([]Pin, 0, len(pins))
	for _, p := range pins {
		one := Pin{ID: p.id, Label: p.label}
		for some := range slices.Chunk(p.set.chunks, 256) { // as in visit
			c.mu.RLock()
			for _, m := range some {
				one.Bytes += int64(m.length)
				if c.index.has(m.key) {
					one.Here += int64(m.length)
				}
			}
			c.mu.RUnlock()
		}
		list = append(list, one)
	}
	return list
}

// pinsBut returns a copy of the pins without one. The caller holds slow.
func (c *Cache) pinsBut(id chunk.ID) []*pin {
	return slices.DeleteFunc(slices.Clone(c.pins), func(p *pin) bool { return p.id == id })
}

func (c *Cache) setPins(pins []*pin, bytes int64) {
	files := pinFiles(pins)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used += files - c.pinFiles
	c.pins, c.pinned, c.pinFiles = pins, bytes, files
	for _, s := range c.segments() {
		s.changed++
	}
}

// pinFiles returns what the pins' own files take of the disk.
func pinFiles(pins []*pin) (total int64) {
	for _, p := range pins {
		total += p.fileSize()
	}
	return total
}

func (p *pin) fileSize() int64 { return onDisk(int64(12 + len(p.label) + len(p.set.chunks)*pinEntry)) }

// pinnedBytes returns what all pinned chunks take in the cache; what several pins
// have counts once.
func pinnedBytes(pins []*pin) (total int64) {
	for i, p := range pins {
		total += pinnedBeside(pins[:i], p)
	}
	return total
}

// pinnedBeside returns what those chunks of p take that others do not have.
func pinnedBeside(others []*pin, p *pin) (total int64) {
	for _, m := range p.set.chunks {
		if !slices.ContainsFunc(others, func(q *pin) bool { return q.set.has(m.key) }) {
			total += recordSize(m.length) + tableEntry
		}
	}
	return total
}

// isPinned tells whether a chunk is pinned. The caller holds slow, so that it
// stays so.
func (c *Cache) isPinned(k key) bool {
	return slices.ContainsFunc(c.pins, func(p *pin) bool { return p.set.has(k) })
}

// pinnedIn returns how many bytes of a segment are pinned. The caller holds slow.
func (c *Cache) pinnedIn(s *segment) (bytes int64) {
	if len(c.pins) == 0 {
		return 0
	}
	c.mu.RLock()
	records, changed := s.records, s.changed
	known, bytes := changed == s.counted, s.pinned
	c.mu.RUnlock()
	if known {
		return bytes
	}
	bytes = 0
	for _, r := range records {
		if c.isPinned(r.key) && c.lies(r.key, place{s, r.offset}) {
			bytes += recordSize(r.length) + tableEntry
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.counted, s.pinned = changed, bytes
	return bytes
}

func (c *Cache) pinPath(id chunk.ID) string { return filepath.Join(c.dir, id.String()+pinSuffix) }

// savePin writes a pin, whole or not at all. Unlike the rest of the cache it is
// somebody's will, so it is synced.
func (c *Cache) savePin(p *pin) error {
	path := c.pinPath(p.id)
	file, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(p.encode())
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return c.syncDir()
}

func (c *Cache) syncDir() error {
	dir, err := os.Open(c.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (p *pin) encode() []byte {
	b := make([]byte, 0, 16+len(p.label)+len(p.set.chunks)*pinEntry)
	b = binary.LittleEndian.AppendUint32(b, pinMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p.label)))
	b = append(b, p.label...)
	for _, m := range p.set.chunks {
		b = append(b, m.key[:]...)
		b = binary.LittleEndian.AppendUint32(b, m.length)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodePin(id chunk.ID, b []byte) (*pin, error) {
	if len(b) < 12 || binary.LittleEndian.Uint32(b) != pinMagic ||
		crc32.Checksum(b[:len(b)-4], castagnoli) != binary.LittleEndian.Uint32(b[len(b)-4:]) {
		return nil, errDamaged
	}
	n := binary.LittleEndian.Uint32(b[4:])
	b = b[8 : len(b)-4]
	if n > maxLabel || int(n) > len(b) || (len(b)-int(n))%pinEntry != 0 {
		return nil, errDamaged
	}
	p := &pin{id: id, label: string(b[:n]), set: &Set{}}
	for b = b[n:]; len(b) > 0; b = b[pinEntry:] {
		m := member{key: key(b), length: binary.LittleEndian.Uint32(b[len(key{}):])}
		if m.length == 0 || m.length > chunk.MaxLength {
			return nil, errDamaged
		}
		p.set.chunks = append(p.set.chunks, m)
	}
	p.set.sort()
	return p, nil
}

// loadPins reads the pins that a former process left. One that cannot be read is
// named in the log, and keeps nothing.
func (c *Cache) loadPins() {
	names, err := os.ReadDir(c.dir)
	if err != nil {
		c.log.Error("the pins of the cache cannot be listed", "cause", err)
	}
	var pins []*pin
	total := int64(0)
	for _, e := range names {
		if strings.HasSuffix(e.Name(), pinSuffix+".new") { // who wrote it was killed
			if err := os.Remove(filepath.Join(c.dir, e.Name())); err != nil {
				c.log.Warn("remove what is left of a pin", "cause", err)
			}
			continue
		}
		hex, ours := strings.CutSuffix(e.Name(), pinSuffix)
		id, err := chunk.ParseID(hex)
		if err != nil || !ours {
			continue
		}
		b, err := os.ReadFile(filepath.Join(c.dir, e.Name()))
		var p *pin
		if err == nil {
			p, err = decodePin(id, b)
		}
		if err != nil {
			c.log.Error("a pin is lost: pin it again", "pin", e.Name(), "cause", err)
			continue
		}
		more := pinnedBeside(pins, p)
		if total+more > c.limits.Size/2 || len(pins) >= maxPins {
			c.log.Error("a pin keeps nothing: with it, more than half of the cache would be pinned", "pin", p.label)
			continue
		}
		pins, total = append(pins, p), total+more
	}
	c.setPins(pins, total)
}
