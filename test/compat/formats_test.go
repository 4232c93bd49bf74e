package compat

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/erofs"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/format/trace"
	"lighter/format/tree"
	"lighter/test/testkit/example"
)

// Keys and contents of the examples. digest and treeID are made up: they are not those of the layer
// (entries) or of its index.
var (
	seed   = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	second = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{8}, ed25519.SeedSize))
	digest = "sha256:" + chunk.Sum([]byte("a chain")).String()
	large  = []byte(strings.Repeat("0123456789abcdef", 64))
	treeID = id("9ed0b8d7a4bd8d1e6dcd09e2a6c2d0b54b1a9f3c0d1e2f3041526374859607a8")
)

func id(hex string) chunk.ID {
	id, err := chunk.ParseID(hex)
	if err != nil {
		panic(err)
	}
	return id
}

// entries returns the entries of the layer.
func entries() []*tree.Entry {
	at := tree.Time{Sec: 1_700_000_000, Nsec: 5}
	return []*tree.Entry{
		{Type: '5', Name: "bin/", Mode: 0o755, Mtime: at},
		{Type: '0', Name: "bin/program", Mode: 0o4755, UID: 1, GID: 2, Mtime: at, Size: int64(len(large) + 1<<20),
			Xattrs: []tree.Xattr{{Name: "user.note", Value: []byte("a value")}},
			Content: tree.Content{Extents: []tree.Extent{
				{ID: chunk.Sum(large), Length: int64(len(large))}, {Length: 1 << 20}}}},
		{Type: '0', Name: "bin/small", Mode: 0o644, Mtime: at, Size: 5, Content: tree.Content{Inline: []byte("small")}},
		{Type: '1', Name: "bin/same", Linkname: "bin/program", Mode: 0o4755, UID: 1, GID: 2, Mtime: at,
			Xattrs: []tree.Xattr{{Name: "user.note", Value: []byte("a value")}}},
		{Type: '2', Name: "link", Linkname: "bin/small", Mode: 0o777, Mtime: at},
		{Type: '3', Name: "null", Mode: 0o666, Major: 1, Minor: 3, Mtime: at},
	}
}

type layer struct{ entries []*tree.Entry }

func (l *layer) Next() (*tree.Entry, error) {
	if len(l.entries) == 0 {
		return nil, io.EOF
	}
	next := l.entries[0]
	l.entries = l.entries[1:]
	return next, nil
}

func TestLayerRecord(t *testing.T) {
	b := example.Stored(t, "layer-1.record", func() []byte {
		var out bytes.Buffer
		w := tree.NewRecordWriter(&out)
		for _, e := range entries() {
			noError(t, w.Add(e))
		}
		noError(t, w.Close())
		return out.Bytes()
	})
	r := tree.NewRecordReader(bytes.NewReader(b))
	for _, want := range entries() {
		got, err := r.Next()
		noError(t, err)
		equal(t, "entry "+want.Name, got, want)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("after the last entry: got error %v, want %v", err, io.EOF)
	}
}

// storedIndex returns the example of an index, decompressed, and its tree ID. The index contains
// the example of a metadata image.
func storedIndex(t *testing.T) (whole []byte, id chunk.ID) {
	compressed := example.Stored(t, "index-1.zst", func() []byte {
		merged, err := tree.Apply(t.Context(), []tree.LayerSource{&layer{entries()}}, tree.Limits{})
		noError(t, err)
		var metadata, all bytes.Buffer
		made, err := index.Make(merged, &metadata)
		noError(t, err)
		z := compress.IndexEncoder(&all, int64(metadata.Len()))
		noError(t, made.Write(z, &metadata))
		noError(t, z.Close())
		return all.Bytes()
	})
	z, err := compress.Reader(bytes.NewReader(compressed))
	noError(t, err)
	defer z.Close()
	whole, err = io.ReadAll(z)
	noError(t, err)
	return whole, chunk.Sum(whole[:256])
}

func TestIndex(t *testing.T) {
	whole, id := storedIndex(t)
	var extentMap, metadata bytes.Buffer
	header, err := index.Receive(bytes.NewReader(whole), id, &extentMap, &metadata)
	noError(t, err)
	equal(t, "files", header.Files, int64(2))
	equal(t, "bytes", header.Bytes, int64(len(large)+1<<20+5))
	equal(t, "distinct bytes", header.DistinctBytes, int64(len(large)))
	m, err := index.OpenMap(bytes.NewReader(extentMap.Bytes()), id, index.NewPages(1))
	noError(t, err)
	noError(t, m.Verify())
	extent, err := m.Extent(0)
	noError(t, err)
	equal(t, "extent", extent, index.Extent{Length: uint32(len(large)), First: true, ID: chunk.Sum(large)})
	noError(t, header.CheckMetadata(t.Context(), bytes.NewReader(metadata.Bytes())))
	image, err := erofs.Open(bytes.NewReader(metadata.Bytes()), header.MetadataSize)
	noError(t, err)
	find := image.Finder()
	program, err := find.Find("/bin/program")
	noError(t, err)
	same, err := find.Find("/bin/same")
	noError(t, err)
	equal(t, "hard link", same, program)
	equal(t, "mode", program.Mode, uint32(tree.ModeRegular|0o4755))
	equal(t, "size", program.Size, int64(len(large)+1<<20))
	link, err := find.Find("/link")
	noError(t, err)
	equal(t, "mode of the symlink", link.Mode, uint32(tree.ModeSymlink|0o777))
	names, err := find.Names("/", 10)
	noError(t, err)
	equal(t, "names", names, []string{"bin", "link", "null"})
}

func TestLocations(t *testing.T) {
	packs := []chunk.ID{chunk.Sum([]byte("a pack")), chunk.Sum([]byte("a startup pack"))}
	units := []chunk.Unit{{Pack: packs[0], N: 3}, {}, {Pack: packs[1]}}
	startup := index.Startup{Pack: packs[1], Units: []uint32{1000, 2000}, AtMount: true, Triggers: []int64{0, 2}}
	b := example.Stored(t, "locations-3.bin", func() []byte {
		l := index.NewLocations(treeID)
		for _, u := range units {
			l.Add(u)
		}
		l.Startup(startup)
		return l.Encode()
	})
	l, err := index.OpenLocations(bytes.NewReader(b), int64(len(b)), treeID, int64(len(units)))
	noError(t, err)
	for i, want := range units {
		got, err := l.Unit(int64(i))
		noError(t, err)
		equal(t, "unit", got, want)
	}
	equal(t, "startup packs", l.Startups(), []index.Startup{startup})
}

func TestStatements(t *testing.T) {
	keys := []ed25519.PrivateKey{seed, second}
	for i, key := range keys {
		pinned := []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}
		var s index.Statement
		decode(t, example.Stored(t, "statement-1.json", func() []byte {
			return encode(t, index.SignAll(keys, digest, treeID))
		}), &s)
		noError(t, s.Verify(digest, pinned))
		equal(t, "tree", s.Tree, treeID)

		var image index.ImageStatement
		decode(t, example.Stored(t, "image-statement-1.json", func() []byte {
			return encode(t, index.SignImage(keys, digest, digest, []string{"a.example/b", "a.example:5000/c"}))
		}), &image)
		noError(t, image.Verify(digest, pinned))
		if !image.Allows("a.example:5000/c") || image.Allows("a.example/c") {
			t.Errorf("key %d: the image statement names %q; want it to allow a.example:5000/c and not a.example/c", i,
				image.Repositories)
		}
	}
}

func TestUnitAndPack(t *testing.T) {
	plain := [][]byte{large, []byte("a chunk"), []byte("the second unit")}
	b := example.Stored(t, "pack-1.pack", func() []byte {
		var out bytes.Buffer
		w := pack.NewWriter(&out)
		for _, chunks := range [][][]byte{plain[:2], plain[2:]} {
			var unit pack.UnitBuilder
			for _, c := range chunks {
				unit.Add(chunk.Sum(c), c)
			}
			_, err := w.Add(unit.Encode(nil, compress.UnitEncoder(zstd.SpeedDefault, pack.MaxPlain)))
			noError(t, err)
		}
		_, _, err := w.Close()
		noError(t, err)
		return out.Bytes()
	})
	table, err := pack.ReadTable(bytes.NewReader(b), int64(len(b)))
	noError(t, err)
	equal(t, "units", table.Units(), 2)
	var got [][]byte
	for n := range uint32(2) {
		offset, length, err := table.Unit(n)
		noError(t, err)
		unit, err := pack.DecodeUnit(b[offset : offset+length])
		noError(t, err)
		for i := range unit.Len() {
			c, err := unit.Chunk(i)
			noError(t, err)
			got = append(got, c)
		}
	}
	if !reflect.DeepEqual(got, plain) {
		t.Errorf("got chunks %q, want %q", got, plain)
	}
}

func TestTraces(t *testing.T) {
	want := trace.Trace{Tree: treeID, Reads: []trace.Read{
		{Length: 4096}, {At: 17 * time.Millisecond, Offset: 8192, Length: 131072}}}
	got, err := trace.Decode(example.Stored(t, "trace-1.json", want.Encode), treeID, 1<<20)
	noError(t, err)
	equal(t, "trace", got, want)

	recordings := []trace.Recording{{Starts: 3, Entries: []trace.Entry{
		{Path: "/bin/program", Length: 1000, Chunks: []chunk.ID{chunk.Sum(large)}},
		{At: 3 * time.Millisecond, Path: "/opt/odd name", Offset: 4096, Length: 1},
	}}}
	text := example.Stored(t, "recordings-1.txt", func() []byte { return trace.EncodeText(recordings) })
	read, err := trace.ParseText(text)
	noError(t, err)
	equal(t, "recordings", read, recordings)
}

// The splitting rule is part of the index's format: another rule would give other tree IDs.
func TestSplitting(t *testing.T) {
	content := slices.Concat(noise(100_000), make([]byte, 200_000), noise(50_000))
	var pieces []string
	var splitter chunk.Splitter
	err := splitter.Split(bytes.NewReader(content), int64(len(content)), func(data []byte, zeros int64) error {
		pieces = append(pieces, fmt.Sprintf("%d %d %s\n", len(data), zeros, chunk.Sum(data)))
		return nil
	})
	noError(t, err)
	got := strings.Join(pieces, "")
	equal(t, "pieces", got, string(example.Stored(t, "pieces-1.txt", func() []byte { return []byte(got) })))
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "\t")
	noError(t, err)
	return b
}

func decode(t *testing.T, b []byte, into any) {
	t.Helper()
	noError(t, json.Unmarshal(b, into))
}
