package stargz

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/layer"
	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

// golden are the layers in testdata. test/tools/storage/tablelayers wrote them, of sourceTar, with
// the libraries of stargz-snapshotter and of containers/storage.
var golden = []string{
	"estargz", "estargz-prioritized", "estargz-shared", "external", "stargz-zstd", "stargz-zstd-shared", "containers",
	"skopeo-1.9",
}

// prioritized are the files that a start of sourceTar needs.
var prioritized = []string{"usr/bin/large", "etc/small", "usr/bin/hard"}

func stored(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func annotations(t testing.TB, name string) map[string]string {
	t.Helper()
	var a map[string]string
	if err := json.Unmarshal(stored(t, name+".json"), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// text returns n bytes of two letters, which compress to an eighth. Equal seeds give equal texts.
func text(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = "ab"[r.IntN(2)]
	}
	return string(b)
}

// lowerTar is the layer below sourceTar.
func lowerTar() []byte {
	return tarball.Of(tarball.Dir("etc", tarball.Mode(0o700), tarball.Owner(3, 4)),
		tarball.File("etc/gone", "x"), tarball.Dir("opaque"), tarball.File("opaque/hidden", "x"),
		tarball.File("etc/replaced", text(9, 1000)))
}

// sourceTar is a layer with entries of all kinds.
func sourceTar() []byte {
	long := strings.Repeat("long-name/", 12)
	return tarball.Of(
		tarball.Dir("./", tarball.Mode(0o711)),
		tarball.Dir("usr", tarball.Mode(0o2755), tarball.Owner(0, 50)),
		tarball.Dir("usr/bin", tarball.Time(1_700_000_000, 0)),
		tarball.File("usr/bin/large", text(1, 350_000), tarball.Mode(0o4755), tarball.Owner(1000, 100_000)),
		tarball.Link("usr/bin/hard", "usr/bin/large", tarball.Mode(0o4755), tarball.Owner(1000, 100_000)),
		tarball.File("usr/bin/medium", text(2, 60_000)),
		tarball.File("usr/bin/sparse", text(3, 3_000)+strings.Repeat("\x00", 90_000)+text(4, 3_000)),
		tarball.File("usr/bin/zeros", strings.Repeat("\x00", 30_000)),
		tarball.File("etc/small", "small\n", tarball.Xattr("user.note", "a\x00b\xff"), tarball.Xattr("trusted.x", "y")),
		tarball.File("etc/same", "small\n"),
		tarball.File("etc/limit", text(5, 512)),
		tarball.File("etc/beyond", text(6, 513)),
		tarball.File("etc/empty", ""),
		tarball.File("etc/capable", text(7, 100), tarball.Xattr("security.capability",
			"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")),
		tarball.File("etc/replaced", "new"),
		tarball.File("no/parents/here", text(8, 2_000), tarball.Time(1_600_000_000, 123_456_789)),
		tarball.File("/absolute", "absolute"), tarball.File("./dots/../dotted", "dotted"),
		tarball.File(long+"name", "long"),
		tarball.Symlink("etc/link", "../usr/bin/large", tarball.Owner(5, 6)),
		tarball.Symlink("etc/dangling", long+"nowhere"),
		tarball.Char("dev/null", 1, 3, tarball.Mode(0o666)), tarball.Block("dev/sda", 8, 0, tarball.Time(-5, 0)),
		tarball.FIFO("dev/fifo"), tarball.File("dev/old", "x", tarball.Time(0, 0)),
		tarball.File("unicode/\u00fc\u6587", "unicode"),
		tarball.Whiteout("etc/gone"), tarball.Opaque("opaque"), tarball.File("opaque/shown", "y"),
		tarball.Dir("etc", tarball.Xattr("user.dir", "late")),
	)
}

// TestGoldenLayersAreOfTheSource checks that the stored layers were made of sourceTar. With
// UPDATE_GOLDEN it makes them first.
func TestGoldenLayersAreOfTheSource(t *testing.T) {
	if os.Getenv("UPDATE_GOLDEN") != "" {
		dir, err := filepath.Abs("testdata")
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("go", append([]string{"run", "./tablelayers", dir}, prioritized...)...)
		cmd.Dir = "../../test/tools/storage"
		cmd.Stdin = bytes.NewReader(sourceTar())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	// containers/storage keeps the tar as it is.
	if got := layerTar(t, stored(t, "containers.blob")); !bytes.Equal(got, sourceTar()) {
		t.Errorf("the layer's tar differs from the source: %d bytes, want %d", len(got), len(sourceTar()))
	}
}

// layerTar decompresses a layer as containerd does.
func layerTar(t testing.TB, blob []byte) []byte {
	t.Helper()
	r, err := compress.Layer(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// find locates the table of a golden layer, by its annotations or by its footer, and decodes it.
func find(t testing.TB, name string, byFooter bool) (Table, *Layer) {
	t.Helper()
	blob, a := stored(t, name+".blob"), annotations(t, name)
	size := int64(len(blob))
	table, found, err := Locate(a, size)
	if err != nil {
		t.Fatal(err)
	}
	if !found || byFooter {
		if table, err = LocateByFooter(a, size, blob[size-TailLength(size):]); err != nil {
			t.Fatal(err)
		}
	}
	text := blob[table.Offset:][:table.Length]
	if table.External {
		text = stored(t, name+"-table.blob")
	}
	l, err := Decode(t.Context(), table, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return table, l
}

// Each golden layer has the tree that containerd would unpack from its tar, as format/tree does it,
// and its units have the contents of all files.
func TestLayersHaveTheTreeOfTheirTar(t *testing.T) {
	for _, name := range golden {
		for _, byFooter := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s footer=%t", name, byFooter), func(t *testing.T) {
				table, l := find(t, name, byFooter)
				if !table.Verifiable() {
					t.Error("the table cannot be verified")
				}
				blob := stored(t, name+".blob")
				compareTrees(t, table.Format, l, blob, layerTar(t, blob))
			})
		}
	}
}

// compareTrees compares the tree of a layer by its table with the tree of its tar.
func compareTrees(t *testing.T, format Format, l *Layer, blob, source []byte) {
	t.Helper()
	lower := scanned(t, lowerTar(), ContainersZstd)
	want := listing(t, nil, lower.Source(), scanned(t, source, format).Source())
	got := listing(t, readUnits(t, l, blob), scanned(t, lowerTar(), ContainersZstd).Source(), l.Source())
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got) || i >= len(want):
			t.Fatalf("%d entries, want %d", len(got), len(want))
		case got[i] != want[i]:
			t.Fatalf("got\n%s\nwant\n%s", got[i], want[i])
		}
	}
	if len(want) < 3 {
		t.Fatalf("only %d entries", len(want))
	}
}

// readUnits returns the plain bytes of all chunks, read by the layer's table.
func readUnits(t *testing.T, l *Layer, blob []byte) map[chunk.ID][]byte {
	t.Helper()
	m, err := l.mapped(chunk.Sum(blob), int64(len(blob)))
	if err != nil {
		t.Fatal(err)
	}
	chunks := map[chunk.ID][]byte{}
	for _, u := range units(t, &m.Layer) {
		batch, err := u.Decode(blob[u.Offset:][:u.Stored])
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range u.Chunks {
			if chunks[c.ID], err = batch.Chunk(i); err != nil {
				t.Fatal(err)
			}
		}
	}
	for id, divided := range m.divided {
		for _, x := range divided {
			chunks[id] = append(chunks[id], chunks[x.ID]...)
		}
	}
	return chunks
}

// units returns the units of a mapped layer's table.
func units(t *testing.T, m *layer.Layer) (all []*layer.Unit) {
	t.Helper()
	var b bytes.Buffer
	if _, err := m.Table.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	table, err := layer.OpenTable(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for n := range table.Units() {
		u, err := table.Unit(uint32(n))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
	}
	return all
}

// scanned reads a tar with format/tree, and changes it as the writers do: stargz-snapshotter rounds
// times, and the files of the format are not shown.
func scanned(t *testing.T, archive []byte, format Format) tree.Entries {
	t.Helper()
	var s tree.Entries
	content := func(e *tree.Entry, r io.Reader) (err error) {
		b, err := io.ReadAll(io.LimitReader(r, e.Size))
		if e.Size <= tree.InlineLimit {
			e.Content.Inline = b
		} else {
			e.Content.Extents = []tree.Extent{{ID: chunk.Sum(b), Length: e.Size}}
		}
		return err
	}
	err := tree.Scan(bytes.NewReader(archive), tree.Limits{}, content, func(e *tree.Entry) error {
		if format != ContainersZstd {
			if slices.Contains([]string{landmark, noLandmark, tableName}, e.Name) {
				return nil
			}
			e.Mtime = tree.Time{Sec: e.Mtime.Sec + int64(e.Mtime.Nsec+500_000_000)/1_000_000_000}
		}
		s = append(s, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// listing returns a line for each path of the tree of the layers, with the digest of the file's
// content. chunks has the contents of all extents, or is nil if each extent is a file's only one.
func listing(t *testing.T, chunks map[chunk.ID][]byte, layers ...tree.LayerSource) []string {
	t.Helper()
	tr, err := tree.Apply(context.Background(), layers, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	names := map[*tree.Node]string{}
	var walk func(path string, n *tree.Node)
	walk = func(path string, n *tree.Node) {
		line := fmt.Sprintf("%s %o %d:%d links %d %d.%d dev %#x size %d -> %q", path, n.Mode, n.UID, n.GID, n.Nlink,
			n.Mtime.Sec, n.Mtime.Nsec, n.Rdev, n.Size, n.Link)
		for _, x := range n.Xattrs {
			line += fmt.Sprintf(" %s=%q", x.Name, x.Value)
		}
		if n.IsRegular() {
			line += " " + contentID(t, n, chunks).String()
		}
		if first, again := names[n]; again {
			line += " same as " + first
		}
		names[n] = path
		lines = append(lines, line)
		for _, child := range n.Children() {
			walk(path+"/"+child.Name, child.Node)
		}
	}
	walk("", tr.Root)
	return lines
}

func contentID(t *testing.T, n *tree.Node, chunks map[chunk.ID][]byte) chunk.ID {
	t.Helper()
	content := n.Content.Inline
	for _, x := range n.Content.Extents {
		plain, known := chunks[x.ID]
		switch {
		case x.IsHole():
			plain = make([]byte, x.Length)
		case !known && len(n.Content.Extents) == 1:
			return x.ID // of another layer
		case !known:
			t.Fatalf("chunk %s is in no unit", x.ID)
		}
		if int64(len(plain)) != x.Length {
			t.Fatalf("chunk %s has %d bytes, want %d", x.ID, len(plain), x.Length)
		}
		content = append(content, plain...)
	}
	return chunk.Sum(content)
}

// A tree of such layers can be mounted like any other: small files are on the device, too.
func TestTreesOfTablesHaveAnIndex(t *testing.T) {
	for _, name := range golden {
		_, l := find(t, name, false)
		tr, err := tree.Apply(t.Context(), []tree.LayerSource{l.Source()}, tree.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		made, err := index.Make(tr, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		chunks := int64(0)
		for _, u := range l.units {
			chunks += int64(len(u.chunks))
		}
		if made.DistinctChunks != chunks || chunks == 0 {
			t.Errorf("%s: the index has %d chunks, the units have %d", name, made.DistinctChunks, chunks)
		}
	}
}

// Times are those that containerd sets.
func TestTimes(t *testing.T) {
	for text, want := range map[string]tree.Time{
		"":                               {},
		"1970-01-01T00:00:00Z":           {},
		"1970-01-01T01:00:01+01:00":      {Sec: 1},
		"2020-09-13T12:26:40.123456789Z": {Sec: 1_600_000_000, Nsec: 123_456_789},
		"1969-12-31T23:59:59.5Z":         {},
		"0001-01-01T00:00:00Z":           {},
		"2262-04-11T23:47:16.854775807Z": {Sec: 9223372036, Nsec: 854775807},
		"2262-04-11T23:47:16.854775808Z": {},
		"9999-12-31T23:59:59Z":           {},
		"146138514283-06-19T07:45:04Z":   {},
		"-32873-11-12T23:23:44Z":         {},
	} {
		r := row{ModTime: text}
		if got, err := r.mtime(); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
	}
}
