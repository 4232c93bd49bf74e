package soci

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	flatbuffers "github.com/google/flatbuffers/go"

	"lighter/format/chunk"
	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

// gzipMaker returns what Make knows about the stored layer of pigz, for tests that change it.
func gzipMaker(t testing.TB) *maker {
	t.Helper()
	layer, _ := examples[1].read(t)
	m := &maker{options: Options{Gzip, 40_000, goldenTool, tree.Limits{}, nil}}
	if err := m.readGzip(bytes.NewReader(layer)); err != nil {
		t.Fatal(err)
	}
	return m
}

func tarMaker(t testing.TB) *maker {
	t.Helper()
	m := &maker{options: Options{Uncompressed, 50_000, goldenTool, tree.Limits{}, nil}}
	if err := m.readTar(bytes.NewReader(sampleTar())); err != nil {
		t.Fatal(err)
	}
	return m
}

// put writes a number into the zinfo of gzip: at an offset in a checkpoint, or in the header if the
// checkpoint is -1.
func (m *maker) put(checkpoint, offset int, value int64) {
	at := offset
	if checkpoint >= 0 {
		at += zinfoHeader + checkpoint*checkpointSize
	}
	binary.LittleEndian.PutUint64(m.zinfo[at:], uint64(value))
}

func TestDecodeRefusesContradictions(t *testing.T) {
	for name, change := range map[string]func(m *maker){
		"a negative size":              func(m *maker) { m.files[2].header.Size = -1 },
		"a negative offset":            func(m *maker) { m.files[2].offset = -512 },
		"overlapping files":            func(m *maker) { m.files[4].offset = m.files[3].offset },
		"no room for a header":         func(m *maker) { m.files[5].offset -= 512 },
		"an offset inside a block":     func(m *maker) { m.files[len(m.files)-1].offset++ },
		"files in another order":       func(m *maker) { m.files[3], m.files[4] = m.files[4], m.files[3] },
		"a file behind the archive":    func(m *maker) { m.files[len(m.files)-1].header.Size = 4096 },
		"a file of 8 EiB":              func(m *maker) { m.files[3].header.Size = math.MaxInt64 },
		"an offset of 8 EiB":           func(m *maker) { m.files[3].offset = math.MaxInt64 - 511 },
		"an unknown type":              func(m *maker) { m.files[3].header.Typeflag = 'Z' },
		"a sparse file":                withRecord("GNU.sparse.major", "1"),
		"large records":                withRecord("x", strings.Repeat("x", 1<<20)),
		"a negative archive":           func(m *maker) { m.plainSize = -1 },
		"a negative layer":             func(m *maker) { m.size = -1 },
		"an archive of 60 GB":          func(m *maker) { m.plainSize = 60e9 },
		"an archive of 8 EiB":          func(m *maker) { m.plainSize = math.MaxInt64 },
		"a layer of the header's size": func(m *maker) { m.size = 10 },
		"a digest too few":             func(m *maker) { m.digests = m.digests[1:] },
		"no digests":                   func(m *maker) { m.digests = nil },
		"no zinfo":                     func(m *maker) { m.zinfo = nil },
		"half a zinfo":                 func(m *maker) { m.zinfo = m.zinfo[:len(m.zinfo)/2] },
		"two checkpoints too few":      func(m *maker) { m.zinfo = m.zinfo[:len(m.zinfo)-2*checkpointSize] },
		"a checkpoint too many":        func(m *maker) { m.put(-1, 0, int64(len(m.digests))-1) },
		"2^31 checkpoints":             func(m *maker) { m.put(-1, 0, math.MaxInt32) },
		"-1 checkpoints":               func(m *maker) { m.put(-1, 0, math.MaxUint32) },
		"a negative span size":         func(m *maker) { m.put(-1, 4, -1) },
		"a first one inside":           func(m *maker) { m.put(0, 8, 100) },
		"a first one before":           func(m *maker) { m.put(0, 0, 9) },
		"a first one with bits":        func(m *maker) { m.zinfo[zinfoHeader+16] = 1 },
		"8 bits":                       func(m *maker) { m.zinfo[zinfoHeader+checkpointSize+16] = 8 },
		"another order, compressed":    func(m *maker) { m.put(1, 0, m.size) },
		"another order, plain":         func(m *maker) { m.put(1, 8, m.plainSize) },
		"a negative checkpoint":        func(m *maker) { m.put(1, 0, -1) },
		"a negative plain checkpoint":  func(m *maker) { m.put(1, 8, math.MinInt64) },
		"behind the layer":             func(m *maker) { m.put(len(m.digests)-1, 0, m.size) },
		"two at one byte": func(m *maker) {
			copy(m.zinfo[zinfoHeader+checkpointSize:], m.zinfo[zinfoHeader+2*checkpointSize:][:checkpointSize])
		},
		"an impossible expansion": func(m *maker) { m.put(1, 0, 20) },
		"another compression":     func(m *maker) { m.options.Compression = 3 },
		"the other compression":   func(m *maker) { m.options.Compression = Uncompressed },
	} {
		m := gzipMaker(t)
		change(m)
		refuse(t, name, m)
	}
	for name, change := range map[string]func(m *maker){
		"tar: no zinfo":              func(m *maker) { m.zinfo = nil },
		"tar: another size":          func(m *maker) { m.size++ },
		"tar: a larger archive":      func(m *maker) { m.plainSize = m.size + 1 },
		"tar: a digest too few":      func(m *maker) { m.digests = m.digests[1:] },
		"tar: another version":       func(m *maker) { m.zinfo = tarZinfo(1, m.options.SpanSize, m.size) },
		"tar: spans of 0 bytes":      func(m *maker) { m.zinfo = tarZinfo(2, 0, m.size) },
		"tar: spans of -1 bytes":     func(m *maker) { m.zinfo = tarZinfo(2, -1, m.size) },
		"tar: larger spans":          func(m *maker) { m.zinfo = tarZinfo(2, 1<<62, m.size) },
		"tar: a negative size":       func(m *maker) { m.zinfo = tarZinfo(2, 1, -m.size); m.size = -m.size },
		"tar: the other compression": func(m *maker) { m.options.Compression = Gzip },
	} {
		m := tarMaker(t)
		change(m)
		refuse(t, name, m)
	}
}

func tarZinfo(version int32, spanSize, size int64) []byte {
	b := flatbuffers.NewBuilder(64)
	b.StartObject(3)
	b.PrependInt32Slot(tarVersion, version, 0)
	b.PrependInt64Slot(tarSpanSize, spanSize, 0)
	b.PrependInt64Slot(tarSize, size, 0)
	b.Finish(b.EndObject())
	return b.FinishedBytes()
}

// withRecord gives a file only this PAX record.
func withRecord(key, value string) func(m *maker) {
	return func(m *maker) { m.files[3].header.PAXRecords = map[string]string{key: value} }
}

func refuse(t *testing.T, name string, m *maker) {
	t.Helper()
	ztoc, err := m.encode()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if _, err := Decode(ztoc, tree.Limits{}); err == nil {
		t.Errorf("%s: got no error", name)
	}
}

// replaced returns the zTOC with other bytes of the same length.
func replaced(t *testing.T, ztoc []byte, from, to string) []byte {
	t.Helper()
	got := bytes.ReplaceAll(ztoc, []byte(from), []byte(to))
	if len(from) != len(to) || bytes.Equal(got, ztoc) {
		t.Fatalf("%q was not replaced", from)
	}
	return got
}

func TestDecodeRefusesInvalidTexts(t *testing.T) {
	_, ztoc := examples[1].read(t)
	table, err := Decode(ztoc, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	digits := hex.EncodeToString(table.spans[1].Digest[:])
	maxSpan := bytes.Clone(ztoc)
	maxSpan[newBuffer(ztoc).root().table(ztocCompression).field(compressionMaxSpan)]++
	m := gzipMaker(t)
	m.files[3].header.PAXRecords = map[string]string{"key1": "a", "key2": "b"}
	twice, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Decode(twice, tree.Limits{}); err != nil {
		t.Fatal(err)
	}
	for name, changed := range map[string][]byte{
		"version":   replaced(t, ztoc, "\x00\x000.9\x00", "\x00\x001.0\x00"),
		"time":      replaced(t, ztoc, "2020-09", "2020-99"),
		"algorithm": replaced(t, ztoc, "sha256:", "sha512:"),
		"digits":    replaced(t, ztoc, digits, strings.ToUpper(digits)),
		"max span":  maxSpan,
		"a record":  replaced(t, twice, "key2", "key1"),
	} {
		if _, err := Decode(changed, tree.Limits{}); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

func TestDecodeLimits(t *testing.T) {
	_, ztoc := examples[1].read(t)
	table, err := Decode(ztoc, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	entries, size := int64(table.Entries()), table.PlainSize
	if _, err := Decode(ztoc, tree.Limits{Entries: entries, Bytes: size}); err != nil {
		t.Errorf("at the limits: %v", err)
	}
	for _, limits := range []tree.Limits{{Entries: entries - 1}, {Bytes: size - 1}} {
		var beyond *tree.LimitError
		if _, err := Decode(ztoc, limits); !errors.As(err, &beyond) {
			t.Errorf("%+v: got %v, want a LimitError", limits, err)
		}
		layer, _ := examples[1].read(t)
		_, err := Make(bytes.NewReader(layer), Options{Gzip, 40_000, goldenTool, limits, nil})
		if !errors.As(err, &beyond) {
			t.Errorf("Make, %+v: got %v, want a LimitError", limits, err)
		}
	}
}

func TestDecodeTruncated(t *testing.T) {
	_, ztoc := examples[3].read(t)
	for n := range len(ztoc) - 4 {
		if _, err := Decode(bytes.Clone(ztoc[:n]), tree.Limits{}); err == nil {
			t.Errorf("%d of %d bytes: got no error", n, len(ztoc))
		}
	}
}

// A few megabytes can refer to themselves millions of times. Reading them all would take hours.
func TestDecodeRefusesSharedParts(t *testing.T) {
	b := flatbuffers.NewBuilder(1 << 20)
	version, text := b.CreateString(Version), b.CreateString(strings.Repeat("x", 1000))
	kind := b.CreateString("reg")
	b.StartObject(2)
	b.PrependUOffsetTSlot(recordValue, text, 0)
	record := b.EndObject()
	records := vector(b, many(record, 100_000))
	b.StartObject(14)
	b.PrependUOffsetTSlot(fileType, kind, 0)
	b.PrependInt64Slot(fileOffset, 512, 0)
	b.PrependUOffsetTSlot(fileRecords, records, 0)
	file := b.EndObject()
	files := vector(b, many(file, 10_000_000))
	b.StartObject(1)
	b.PrependUOffsetTSlot(tocMetadata, files, 0)
	toc := b.EndObject()
	m := tarMaker(t)
	digests := vector(b, many(b.CreateString(m.digests[0].String()), len(m.digests)))
	zinfo := b.CreateByteVector(m.zinfo)
	b.StartObject(4)
	b.PrependInt32Slot(compressionMaxSpan, int32(len(m.digests)-1), 0)
	b.PrependUOffsetTSlot(compressionDigests, digests, 0)
	b.PrependUOffsetTSlot(compressionCheckpoints, zinfo, 0)
	b.PrependInt8Slot(compressionAlgorithm, int8(Uncompressed), int8(Gzip))
	info := b.EndObject()
	b.StartObject(6)
	b.PrependUOffsetTSlot(ztocVersion, version, 0)
	b.PrependUOffsetTSlot(ztocTOC, toc, 0)
	b.PrependInt64Slot(ztocCompressedSize, m.size, 0)
	b.PrependInt64Slot(ztocPlainSize, m.plainSize, 0)
	b.PrependUOffsetTSlot(ztocCompression, info, 0)
	b.Finish(b.EndObject())

	var beyond *tree.LimitError
	if _, err := Decode(b.FinishedBytes(), tree.Limits{Entries: 1_000_000}); !errors.As(err, &beyond) {
		t.Errorf("10 million entries: got %v, want a LimitError", err)
	}
	if _, err := Decode(b.FinishedBytes(), tree.Limits{}); err == nil {
		t.Error("shared records: got no error")
	}
	shared := newBuffer(b.FinishedBytes())
	list := shared.root().table(ztocTOC).list(tocMetadata)
	for i := 0; i < list.n && shared.err == nil; i++ {
		entry := list.table(i).list(fileRecords)
		for j := 0; j < entry.n && shared.err == nil; j++ {
			entry.table(j).raw(recordValue)
		}
	}
	if !errors.Is(shared.err, errBuffer) {
		t.Errorf("reading shared parts: got %v, want an error", shared.err)
	}
}

func many(offset flatbuffers.UOffsetT, n int) []flatbuffers.UOffsetT {
	all := make([]flatbuffers.UOffsetT, n)
	for i := range all {
		all[i] = offset
	}
	return all
}

// A span of more plain bytes than a node decodes at a time cannot be mapped. One that inflates to
// more than its zTOC says is cut off (package layer).
func TestMapRefusesLargeSpans(t *testing.T) {
	plain := tarball.Of(tarball.File("zeros", strings.Repeat("\x00", 20<<20)))
	blob := member(t, plain)
	ztoc, err := Make(bytes.NewReader(blob), Options{Compression: Gzip, SpanSize: 10 << 20, Tool: goldenTool})
	if err != nil {
		t.Fatal(err)
	}
	table, err := Decode(ztoc, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	const want = "plain bytes: the limit is 8388608"
	if _, err := table.Map(chunk.Sum(blob), int64(len(blob)), nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}
