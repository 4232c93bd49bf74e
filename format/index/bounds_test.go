package index

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"slices"
	"testing"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/tree"
)

// A page with a correct digest can still be invalid, if a malicious hub has signed the index.
func TestDecodePageRefuses(t *testing.T) {
	const first, end = 8192, 1 << 30
	one, two := Extent{Offset: first, Length: 100, First: true, ID: id(1)},
		Extent{Offset: 12288, Length: 200, ID: id(2)}
	page := func(change func(b []byte), extents ...Extent) []byte {
		b := make([]byte, 0, pageSize)
		for _, e := range extents {
			b = e.append(b)
		}
		b = b[:pageSize]
		change(b)
		return b
	}
	same := func([]byte) {}
	with := func(e Extent, change func(e *Extent)) Extent { change(&e); return e }
	if extents, err := decodePage(page(same, one, two), 2, first, end); err != nil ||
		!slices.Equal(extents, []Extent{one, two}) {
		t.Fatalf("got %v, %v; want both extents", extents, err)
	}
	for name, b := range map[string][]byte{
		"out of order":           page(same, two, one),
		"in order, but later":    page(same, with(one, func(e *Extent) { e.Offset++ }), two),
		"in order, but earlier":  page(same, with(one, func(e *Extent) { e.Offset-- }), two),
		"overlapping":            page(same, one, with(two, func(e *Extent) { e.Offset = one.End() - 1 })),
		"the same again":         page(same, one, one),
		"no ID":                  page(same, one, with(two, func(e *Extent) { e.ID = chunk.ID{} })),
		"no bytes":               page(same, one, with(two, func(e *Extent) { e.Length = 0 })),
		"too many bytes":         page(same, one, with(two, func(e *Extent) { e.Length = chunk.MaxLength + 1 })),
		"a flag":                 page(func(b []byte) { b[12] |= 2 }, one, two),
		"the highest flag":       page(func(b []byte) { b[15] |= 0x80 }, one, two),
		"beyond the end":         page(same, one, with(two, func(e *Extent) { e.Offset = end - 199 })),
		"behind the end":         page(same, one, with(two, func(e *Extent) { e.Offset = end + 1 })),
		"an offset near 2⁶³":     page(same, one, with(two, func(e *Extent) { e.Offset = math.MaxInt64 - 100 })),
		"an offset of 2⁶³":       page(same, one, with(two, func(e *Extent) { e.Offset = math.MinInt64 })),
		"one extent less":        page(same, one),
		"one extent more":        page(same, one, two, with(two, func(e *Extent) { e.Offset += 4096 })),
		"something at its end":   page(func(b []byte) { b[pageSize-1] = 1 }, one, two),
		"something behind these": page(func(b []byte) { b[2*extentSize] = 1 }, one, two),
	} {
		if _, err := decodePage(b, 2, first, end); err == nil {
			t.Errorf("%s: accepted, want an error", name)
		}
	}
	// At the end of the device.
	last := with(two, func(e *Extent) { e.Offset = end - 200 })
	if _, err := decodePage(page(same, one, last), 2, first, end); err != nil {
		t.Error(err)
	}
	below := with(one, func(e *Extent) { e.Offset = -first })
	if _, err := decodePage(page(same, below), 1, -first, end); err == nil {
		t.Error("a page that begins below 0 is accepted")
	}
	if _, err := decodePage(page(same, one), 1, first, math.MinInt64); err == nil {
		t.Error("a page that ends before it begins is accepted")
	}
}

func TestDecodeHeaderRefuses(t *testing.T) {
	m, _ := made(t, sample(t))
	const metadataSize, pages, extents, deviceSize, files = 80, 88, 96, 104, 112
	put := func(at int, v uint64) []byte {
		b := m.encode()
		binary.LittleEndian.PutUint64(b[at:], v)
		return b
	}
	set := func(at int, v byte) []byte {
		b := m.encode()
		b[at] = v
		return b
	}
	for name, b := range map[string][]byte{
		"cut":                             m.encode()[:headerSize-1],
		"another magic":                   set(0, 'l'),
		"another format":                  set(8, 2),
		"something behind the format":     set(12, 1),
		"something at its end":            set(headerSize-1, 1),
		"something behind the numbers":    set(144, 1),
		"a page too many":                 put(pages, 2),
		"no page":                         put(pages, 0),
		"more extents than the page has":  put(extents, 86),
		"no extents":                      put(extents, 0),
		"extents that wrap around":        put(extents, math.MaxInt64),
		"a device of half a block":        put(deviceSize, 2048),
		"a device that EROFS cannot have": put(deviceSize, 1<<44),
		"no metadata":                     put(metadataSize, 0),
		"metadata of half a block":        put(metadataSize, 5*pageSize/2),
		"metadata of a block":             put(metadataSize, pageSize),
		"metadata that EROFS cannot have": put(metadataSize, erofs.MaxSize+pageSize),
		"a number of 2⁶³":                 put(files, 1<<63),
		"a device of 2⁶³":                 put(deviceSize, 1<<63),
	} {
		if _, err := decodeHeader(b); err == nil {
			t.Errorf("%s: accepted, want an error", name)
		}
	}
	for name, b := range map[string][]byte{
		"as it is":           m.encode(),
		"the largest device": put(deviceSize, 1<<44-pageSize),
		"the largest image":  put(metadataSize, erofs.MaxSize),
		"85 extents":         put(extents, pageExtents),
		"files at will":      put(files, 1<<62),
	} {
		if _, err := decodeHeader(b); err != nil {
			t.Errorf("%s: got %v, want no error", name, err)
		}
	}
	many := m.Header
	many.Pages, many.Extents = maxPages+1, (maxPages+1)*pageExtents
	if _, err := decodeHeader(many.encode()); err == nil {
		t.Error("an index of too many pages is accepted")
	}
}

// A metadata image belongs to one device. With the extent map of another, the kernel would read
// beyond the device's end.
func TestReceiveComparesTheDevice(t *testing.T) {
	var metadata, whole bytes.Buffer
	m, err := Make(&tree.Tree{Root: sample(t)}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []int64{0, pageSize} {
		m.DeviceSize += more
		whole.Reset()
		if err := m.Write(&whole, bytes.NewReader(metadata.Bytes())); err != nil {
			t.Fatal(err)
		}
		_, err := Receive(&whole, m.ID(), io.Discard, io.Discard)
		if (err == nil) != (more == 0) {
			t.Errorf("a device of %d bytes more: got %v, want no error only for 0", more, err)
		}
	}
}

// FuzzDecodePage fuzzes extents without their digests, which a fuzzer cannot guess.
func FuzzDecodePage(f *testing.F) {
	e := Extent{Offset: 4096, Length: 7, First: true, ID: id(1)}
	f.Add(e.append(nil), int64(4096))
	f.Add(Extent{Offset: math.MaxInt64, Length: 7, ID: id(1)}.append(nil), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, b []byte, first int64) {
		const end = 1 << 40
		page := make([]byte, pageSize)
		n := min(copy(page, b)/extentSize, pageExtents)
		extents, err := decodePage(page, n, first, end)
		if err != nil {
			return
		}
		at := int64(0)
		for _, e := range extents {
			if e.Offset < at || e.Length == 0 || e.Offset > end || int64(e.Length) > end-e.Offset {
				t.Fatalf("extent %v after offset %d was accepted", e, at)
			}
			at = e.End()
		}
	})
}
