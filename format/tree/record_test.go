package tree

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"lighter/format/chunk"
	"lighter/test/testkit/golden"
	"lighter/test/testkit/tarball"
)

// allKinds returns entries with every part of the format.
func allKinds() []*Entry {
	return []*Entry{
		{Type: '5', Name: "usr/", Mode: 0o755, Mtime: Time{1600000000, 0}},
		{Type: '5', Name: "usr/bin/", Mode: 0o2755, UID: 1, GID: 2, Mtime: Time{1600000000, 123456789}},
		{Type: '0', Name: "usr/bin/empty", Mode: 0o644},
		{Type: '0', Name: "usr/bin/inline", Mode: 0o4755, Size: 5, Content: Content{Inline: []byte("hello")}},
		{Type: '0', Name: "usr/bin/large", Size: 3<<20 + 1, Content: Content{Extents: []Extent{
			{ID: chunk.Sum([]byte("a")), Length: 1 << 20}, {Length: 2 << 20},
			{ID: chunk.Sum([]byte("b")), Length: 1}}}},
		{Type: '1', Name: "usr/bin/link", Linkname: "usr/bin/inline"},
		{Type: '2', Name: "usr/lib", Linkname: "\xff",
			Xattrs: []Xattr{{Name: "security.x", Value: []byte{}}, {Name: "user.y", Value: []byte("\x00\xff")}}},
		{Type: '3', Name: "dev/null", Major: 1, Minor: 3},
		{Type: '4', Name: "dev/sda", Major: 1 << 40, Minor: -1},
		{Type: '6', Name: "dev/pipe", UID: -1, GID: 1 << 40},
		{Type: 'g', Name: "", Xattrs: []Xattr{{Name: "", Value: []byte("v")}}},
		{Type: 'Z', Name: strings.Repeat("n", 70000), Mtime: Time{maxSeconds, 999999999}},
	}
}

func writeRecord(t testing.TB, list []*Entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewRecordWriter(&b)
	for _, e := range list {
		if err := w.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func readRecord(r io.Reader) ([]*Entry, error) {
	var list []*Entry
	for in := NewRecordReader(r); ; {
		e, err := in.Next()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
}

func TestRecordGolden(t *testing.T) {
	list := allKinds()
	golden.Compare(t, "layer.record", string(writeRecord(t, list[:len(list)-1])))
}

func TestRecordReturnsItsEntries(t *testing.T) {
	want := allKinds()
	record := writeRecord(t, want)
	for name, r := range map[string]io.Reader{
		"whole": bytes.NewReader(record), "bytewise": iotest.OneByteReader(bytes.NewReader(record)),
		"with the error": iotest.DataErrReader(bytes.NewReader(record)),
	} {
		got, err := readRecord(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := range want {
			if i >= len(got) || !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("%s: entry %d is %+v, want %+v", name, i, got[i], want[i])
			}
		}
	}
}

func TestEmptyRecord(t *testing.T) {
	if list, err := readRecord(bytes.NewReader(writeRecord(t, nil))); err != nil || len(list) != 0 {
		t.Errorf("got %d entries, %v; want none", len(list), err)
	}
}

func TestTruncatedRecord(t *testing.T) {
	list := allKinds()
	record := writeRecord(t, list[:len(list)-1])
	for n := range record {
		if _, err := readRecord(bytes.NewReader(record[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d of %d bytes: got %v, want ErrUnexpectedEOF", n, len(record), err)
		}
	}
	if _, err := readRecord(bytes.NewReader(append(record, 0))); err == nil {
		t.Error("read a record with a byte after the trailer: got no error")
	}
}

func TestRecordWithFlippedBits(t *testing.T) {
	list := allKinds()
	record := writeRecord(t, list[:len(list)-1])
	for n := range 8 * len(record) {
		bad := bytes.Clone(record)
		bad[n/8] ^= 1 << (n % 8)
		if _, err := readRecord(bytes.NewReader(bad)); err == nil {
			t.Fatalf("flipped bit %d of byte %d: got no error", n%8, n/8)
		}
	}
}

func TestRecordReturnsErrorsOfItsReader(t *testing.T) {
	r := NewRecordReader(iotest.ErrReader(errTest))
	for range 2 {
		if _, err := r.Next(); !errors.Is(err, errTest) {
			t.Errorf("got %v, want the reader's error", err)
		}
	}
}

func TestRecordChecksEntries(t *testing.T) {
	for name, e := range map[string]*Entry{
		"no type":         {},
		"a mode":          {Type: '5', Mode: 1 << 12},
		"a time":          {Type: '5', Mtime: Time{Sec: -1}},
		"a time too late": {Type: '5', Mtime: Time{Sec: maxSeconds + 1}},
		"nanoseconds":     {Type: '5', Mtime: Time{Nsec: 1e9}},
		"a long name":     {Type: '5', Name: strings.Repeat("n", maxString+1)},
		"a long target":   {Type: '2', Linkname: strings.Repeat("n", maxString+1)},
		"long attributes": {Type: '5', Xattrs: []Xattr{{Name: "user.a", Value: make([]byte, maxString)}}},
		"a size":          {Type: '0', Size: -1},
		"too large a size": {Type: '0', Size: maxFileSize + 1,
			Content: Content{Extents: []Extent{{Length: maxFileSize + 1}}}},
		"no content":       {Type: '0', Size: 1},
		"too much content": {Type: '0', Size: 1, Content: Content{Inline: []byte("no")}},
		"an extent too many": {Type: '0', Size: 600,
			Content: Content{Extents: []Extent{{Length: 600}, {Length: 1}}}},
		"an empty extent": {Type: '0', Size: 600, Content: Content{Extents: []Extent{{Length: 600}, {}}}},
		"inline and large": {Type: '0', Size: InlineLimit + 1,
			Content: Content{Inline: make([]byte, InlineLimit+1)}},
		"extents and small":      {Type: '0', Size: 1, Content: Content{Extents: []Extent{{Length: 1}}}},
		"attributes in disorder": {Type: '5', Xattrs: []Xattr{{Name: "user.b"}, {Name: "user.a"}}},
		"an attribute twice":     {Type: '5', Xattrs: []Xattr{{Name: "user.a"}, {Name: "user.a"}}},
		"both": {Type: '0', Size: 601,
			Content: Content{Inline: []byte{1}, Extents: []Extent{{Length: 600}}}},
	} {
		if err := NewRecordWriter(io.Discard).Add(e); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

// The encoding of entries is unique: longer encodings are refused.
func TestRecordEncodingIsUnique(t *testing.T) {
	entry := func(shared, rest string, mode string) []byte {
		return []byte("5" + shared + rest + mode + "\x00\x00\x00\x00\x00")
	}
	record := func(entries ...[]byte) []byte {
		b := append([]byte(recordMagic), bytes.Join(entries, nil)...)
		b = append(b, 0, byte(len(entries)))
		return reseal(b)
	}
	a := entry("\x00", "\x02ab", "\x01")
	for name, c := range map[string]struct {
		record []byte
		ok     bool
	}{
		"as it is written":          {record(a, entry("\x01", "\x01c", "\x01")), true},
		"the same name again":       {record(a, entry("\x02", "\x00", "\x01")), true},
		"a number in two bytes":     {record(a, entry("\x01", "\x01c", "\x81\x00")), false},
		"a length in two bytes":     {record(a, entry("\x01", "\x81\x00c", "\x01")), false},
		"a name that shares less":   {record(a, entry("\x00", "\x02ac", "\x01")), false},
		"a name that shares more":   {record(a, entry("\x03", "\x00", "\x01")), false},
		"the beginning of a name":   {record(a, entry("\x01", "\x00", "\x01")), true},
		"a trailer in two bytes":    {reseal(append(record()[:len(recordMagic)+1], 0x80, 0)), false},
		"a trailer as it is always": {reseal(append(record()[:len(recordMagic)+1], 0)), true},
	} {
		list, err := readRecord(bytes.NewReader(c.record))
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v, want success: %t", name, err, c.ok)
		}
		if err == nil && !bytes.Equal(writeRecord(t, list), c.record) {
			t.Errorf("%s: the writer encodes it differently", name)
		}
	}
}

// reseal appends the checksum to a record without one.
func reseal(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// FuzzRecord reads any bytes as a record. Accepted bytes must be the writer's encoding of the
// entries.
func FuzzRecord(f *testing.F) {
	list := allKinds()
	f.Add(writeRecord(f, list[:len(list)-1]))
	f.Add(writeRecord(f, nil))
	f.Add([]byte(recordMagic))
	f.Fuzz(func(t *testing.T, record []byte) {
		list, err := readRecord(bytes.NewReader(record))
		if err != nil {
			return
		}
		if again := writeRecord(t, list); !bytes.Equal(again, record) {
			t.Fatalf("the writer encodes it as %x, not as %x", again, record)
		}
	})
}

// FuzzApply reads any bytes as the records of a chain, separated by the magic of records.
func FuzzApply(f *testing.F) {
	const border = "\x00layer\x00"
	for _, c := range tarball.Odd() {
		if stream := bytes.Join(c.Layers, []byte(border)); len(stream) < 100<<10 {
			f.Add(stream)
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		limits := Limits{Entries: 1000, Bytes: 1 << 20}
		tr, err := applyTar(limits, bytes.Split(stream, []byte(border))...)
		if err == nil {
			checkTree(t, tr.Root, map[*Node]struct{}{})
		}
	})
}

// checkTree checks a tree: names are sorted and valid, each directory has one name, and each node
// is of a known type.
func checkTree(t *testing.T, n *Node, dirs map[*Node]struct{}) {
	if _, again := dirs[n]; again {
		t.Fatal("a directory has two names")
	}
	dirs[n] = struct{}{}
	last := ""
	for _, child := range n.Children() {
		if child.Name <= last || len(child.Name) > 255 || strings.ContainsAny(child.Name, "/\x00") ||
			child.Name == "." || child.Name == ".." {
			t.Fatalf("name %q after %q, want valid names in order", child.Name, last)
		}
		last = child.Name
		switch child.Node.Mode & ModeType {
		case ModeDir:
			checkTree(t, child.Node, dirs)
		case ModeRegular, ModeSymlink, ModeChar, ModeBlock, ModeFIFO:
			if child.Node.Nlink == 0 {
				t.Fatalf("%q has no links", child.Name)
			}
		default:
			t.Fatalf("%q has mode %#o, which is of no known file type", child.Name, child.Node.Mode)
		}
	}
}

func TestSameRecordsGiveTheSameTree(t *testing.T) {
	for _, c := range tarball.Odd() {
		var first, second strings.Builder
		for _, w := range []io.Writer{&first, &second} {
			if tr, err := applyTar(Limits{}, c.Layers...); err == nil {
				dump(w, "/", tr.Root, 0)
			}
		}
		if first.String() != second.String() {
			t.Errorf("%s: the same records gave two trees", c.Name)
		}
	}
}

func TestApplyReadsRecords(t *testing.T) {
	r := NewRecordReader(bytes.NewReader(writeRecord(t, allKinds()[:4])))
	tr, err := Apply(context.Background(), []LayerSource{r}, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if names := tr.Root.Children(); len(names) != 1 || names[0].Name != "usr" {
		t.Errorf("got %v, want only \"usr\"", names)
	}
}
