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

	"lighter/durable"
	"lighter/format/chunk"
)

// A pin's file, in the cache's directory. docs/format.md has its bytes.
const (
	pinMagic  = 0x3150544c // "LTP1"
	pinSuffix = ".pin"
	pinEntry  = len(key{}) + 4
)

// pin is a set of chunks that are not evicted.
type pin struct {
	id    chunk.ID
	label string
	set   *Set
}

// fileSize is what the pin's file takes of the disk.
func (p *pin) fileSize() int64 { return onDisk(int64(12 + len(p.label) + len(p.set.chunks)*pinEntry)) }

// pins are all pins of a cache.
type pins []*pin

// has reports whether a chunk is pinned.
func (ps pins) has(k key) bool {
	return slices.ContainsFunc(ps, func(p *pin) bool { return p.set.has(k) })
}

// without returns a copy of the pins without the pin of that ID.
func (ps pins) without(id chunk.ID) pins {
	return slices.DeleteFunc(slices.Clone(ps), func(p *pin) bool { return p.id == id })
}

// more returns the bytes of those records of p that ps does not pin.
func (ps pins) more(p *pin) (total int64) {
	for _, m := range p.set.chunks {
		if !ps.has(m.key) {
			total += recordSize(m.length) + tableEntry
		}
	}
	return total
}

// bytes returns the bytes of all pinned records.
func (ps pins) bytes() (total int64) {
	for i, p := range ps {
		total += ps[:i].more(p)
	}
	return total
}

// fileBytes returns what the pins' own files take of the disk.
func (ps pins) fileBytes() (total int64) {
	for _, p := range ps {
		total += p.fileSize()
	}
	return total
}

// Pin describes one pin of a cache.
type Pin struct {
	ID     chunk.ID `json:"id"`
	Label  string   `json:"label"`
	Bytes  int64    `json:"bytes"`       // of its chunks
	Cached int64    `json:"cachedBytes"` // of those of its chunks that are cached
}

// Pin keeps a set of chunks from being evicted, under an ID and across restarts: cached chunks and
// those that are put later. It replaces an earlier pin of that ID. All pins together may take half
// of the room for chunks, which is the cache's limit without the size of external files.
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
	others := c.pins.without(id)
	if len(others) >= maxPins {
		return fmt.Errorf("there are %d pins already, which is the most: unpin one", maxPins)
	}
	p := &pin{id, label, set}
	before, more := others.bytes(), others.more(p)
	if half := c.External.half(); before+more > half {
		return fmt.Errorf("the pin needs %d MiB, and %d MiB are pinned already; together, pins may have %d MiB "+
			"(half of what local devices leave of the cache): unpin something, or make the cache larger",
			more>>20, before>>20, half>>20)
	}
	if !c.reservePin(p.fileSize()) {
		return fmt.Errorf("write pin %s: %w", id.Short(), errNoRoom)
	}
	if err := p.write(c.dir); err != nil {
		c.setPins(c.pins, c.pinned) // frees the room that was reserved for the file
		return fmt.Errorf("write pin %s: %w", id.Short(), err)
	}
	c.setPins(append(others, p), before+more)
	return nil
}

// reservePin makes room for a pin's file, and for a segment to which pinned records can move. The
// caller holds slow.
func (c *Cache) reservePin(file int64) bool {
	for {
		c.mu.Lock()
		ok := c.fits(c.segmentSize + file)
		if ok {
			c.used += file
			c.files += file
		}
		c.mu.Unlock()
		if ok || !c.evictOldest() {
			return ok
		}
	}
}

// Unpin undoes Pin, and reports whether there was a pin.
func (c *Cache) Unpin(id chunk.ID) (bool, error) {
	if c.isAbsent() != nil {
		return false, nil
	}
	<-c.loaded
	c.slow.Lock()
	defer c.slow.Unlock()
	others := c.pins.without(id)
	if len(others) == len(c.pins) {
		return false, nil
	}
	if err := os.Remove(pinPath(c.dir, id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return true, fmt.Errorf("remove pin %s: %w", id.Short(), err)
	}
	c.setPins(others, others.bytes())
	return true, durable.SyncDir(c.dir)
}

// Pins lists the pins, in the order in which they were made or found.
func (c *Cache) Pins() []Pin {
	c.mu.RLock()
	pins := c.pins
	c.mu.RUnlock()
	list := make([]Pin, 0, len(pins))
	for _, p := range pins {
		one := Pin{ID: p.id, Label: p.label}
		for batch := range slices.Chunk(p.set.chunks, batchSize) {
			c.mu.RLock()
			for _, m := range batch {
				one.Bytes += int64(m.length)
				if c.index.has(m.key) {
					one.Cached += int64(m.length)
				}
			}
			c.mu.RUnlock()
		}
		list = append(list, one)
	}
	return list
}

func (c *Cache) setPins(pins pins, bytes int64) {
	files := pins.fileBytes()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used += files - c.files
	c.pins, c.pinned, c.files = pins, bytes, files
	for _, s := range c.segments() {
		s.pinned = uncounted
	}
}

// pinnedIn returns how many bytes of a segment are pinned. The caller holds slow.
func (c *Cache) pinnedIn(s *segment) (bytes int64) {
	if len(c.pins) == 0 {
		return 0
	}
	c.mu.RLock()
	bytes = s.pinned
	c.mu.RUnlock()
	if bytes != uncounted {
		return bytes
	}
	bytes = 0
	c.forEach(s, func(r record) {
		if c.pins.has(r.key) {
			bytes += recordSize(r.length) + tableEntry
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	s.pinned = bytes // a record that was lost meanwhile may count: this is an estimate
	return bytes
}

func pinPath(dir string, id chunk.ID) string { return filepath.Join(dir, id.String()+pinSuffix) }

// write writes a pin's file. Unlike the rest of the cache, the file is synced, because a pin cannot
// be fetched again.
func (p *pin) write(dir string) error {
	path := pinPath(dir, p.id)
	err := durable.Replace(path, p.encode())
	if err != nil {
		_ = os.Remove(path + newSuffix) // the cache does not count that file
	}
	return err
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

// loadPins reads the pins of a previous process. A pin that cannot be read pins nothing.
func (c *loader) loadPins() {
	names, err := os.ReadDir(c.dir)
	if err != nil {
		c.log.Error("cache pins cannot be listed", "dir", c.dir, "err", err)
	}
	var pins pins
	total := int64(0)
	for _, e := range names {
		if strings.HasSuffix(e.Name(), pinSuffix+newSuffix) { // its writer was killed
			if err := os.Remove(filepath.Join(c.dir, e.Name())); err != nil {
				c.log.Warn("unfinished cache pin cannot be removed", "pin", e.Name(), "err", err)
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
			c.log.Error("cache pin lost, pin the image again", "pin", e.Name(), "err", err)
			continue
		}
		more := pins.more(p)
		if total+more > c.limits.Size/2 || len(pins) >= maxPins {
			c.log.Error("cache pin ignored, the pins are too many or exceed half of the cache", "pin", p.label)
			continue
		}
		pins, total = append(pins, p), total+more
	}
	c.setPins(pins, total)
}
