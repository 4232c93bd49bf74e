package soci

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/layer"
	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

const goldenTool = "AWS SOCI CLI v0.2"

// A stored example is a layer in testdata with the zTOC that SOCI's own code has made of it:
// NAME.layer, unless it is a plain tar, and NAME.ztoc. UPDATE_SOCI=PROGRAM writes them again; the
// program is the one in bench/soci. It needs gzip and pigz.
type stored struct {
	name        string
	compression Compression
	spanSize    int64
	compress    func(t *testing.T, plain []byte) []byte
}

var examples = []stored{
	{"gzip", Gzip, 40_000, func(t *testing.T, plain []byte) []byte { return piped(t, plain, "gzip", "-9") }},
	{"pigz", Gzip, 40_000, func(t *testing.T, plain []byte) []byte {
		return piped(t, plain, "pigz", "-b", "32", "-p", "2", "-i")
	}},
	{"members", Gzip, 40_000, func(t *testing.T, plain []byte) []byte {
		var all []byte
		for _, part := range [][]byte{nil, plain[:30_000], plain[30_000:60_001], nil, plain[60_001:]} {
			all = append(all, member(t, part)...)
		}
		return all
	}},
	{"tar", Uncompressed, 50_000, func(_ *testing.T, plain []byte) []byte { return plain }},
}

// sampleTar is a layer with entries of all kinds.
func sampleTar() []byte {
	random := rand.New(rand.NewPCG(3, 4))
	var text strings.Builder
	for text.Len() < 120_000 {
		fmt.Fprintf(&text, "word%d of %d\n", random.IntN(3000), random.IntN(1e6))
	}
	words := text.String()
	long := strings.Repeat("0123456789/", 30)
	return tarball.Of(
		tarball.Dir("./a/", tarball.Mode(0o41755), tarball.Owner(-1, 70_000)), tarball.File("a/empty", ""),
		tarball.File("a/one", "x", tarball.Mode(0o4755), tarball.Time(1_700_000_000, 123_456_789)),
		tarball.File("a/511", words[:511], tarball.Xattr("user.b", "2\x00"), tarball.Xattr("security.a", ""),
			tarball.PAX("comment", "x")),
		tarball.File("a/512", words[:512]), tarball.File("a/513", words[:513], tarball.Time(-5, 0)),
		tarball.Link("b/link", "a/511", tarball.Claim(5)), tarball.Symlink("b/../symlink", "/a/one"),
		tarball.File("words", words), tarball.FIFO("fifo"), tarball.Char("null", 1, 3), tarball.Block("disk", 8, 1<<19),
		tarball.File(long+"pax", "y"), tarball.File(long+"gnu", "z", tarball.Long),
		tarball.File("a/.wh.gone", "not a file"), tarball.File("b/.wh..wh..opq", ""),
		tarball.File("a/one", "again"), tarball.File("a/odd \xff\n", "x", tarball.Time(1<<40, 5)),
	)
}

// member returns a gzip member with an optional header field.
func member(t testing.TB, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Name = "layer.tar"
	if _, err := z.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// piped returns what a command makes of its standard input.
func piped(t *testing.T, in []byte, command ...string) []byte {
	t.Helper()
	c := exec.CommandContext(t.Context(), command[0], command[1:]...)
	c.Stdin = bytes.NewReader(in)
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	return out
}

// read returns a stored layer and its zTOC.
func (g stored) read(t testing.TB) (layer, ztoc []byte) {
	t.Helper()
	ztoc, err := os.ReadFile(filepath.Join("testdata", g.name+".ztoc"))
	if err != nil {
		t.Fatal(err)
	}
	if g.compression == Uncompressed {
		return sampleTar(), ztoc
	}
	layer, err = os.ReadFile(filepath.Join("testdata", g.name+".layer"))
	if err != nil {
		t.Fatal(err)
	}
	return layer, ztoc
}

func TestUpdateExamples(t *testing.T) {
	program := os.Getenv("UPDATE_SOCI")
	if program == "" {
		return
	}
	for _, g := range examples {
		layer := filepath.Join("testdata", g.name+".layer")
		if g.compression == Uncompressed {
			layer = filepath.Join(t.TempDir(), "layer")
		}
		if err := os.WriteFile(layer, g.compress(t, sampleTar()), 0o644); err != nil {
			t.Fatal(err)
		}
		c := exec.CommandContext(t.Context(), program, "ztoc", "--compression", g.compression.String(), "--span-size",
			fmt.Sprint(g.spanSize), layer, filepath.Join("testdata", g.name+".ztoc"))
		c.Env = append(os.Environ(), "TZ=UTC")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", g.name, err, out)
		}
	}
}

func TestMakeGivesTheBytesOfSOCI(t *testing.T) {
	for _, g := range examples {
		layer, want := g.read(t)
		got, err := Make(bytes.NewReader(layer), Options{g.compression, g.spanSize, goldenTool, tree.Limits{}, nil})
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: got %d bytes (%v), want %d, or they differ", g.name, len(got), err, len(want))
		}
	}
}

// The entries are those that Scan reads, and their contents are where the zTOC says.
func TestEntriesAreThoseOfTheTar(t *testing.T) {
	plain := sampleTar()
	var want []*tree.Entry
	contents := map[string][]byte{}
	err := tree.Scan(bytes.NewReader(plain), tree.Limits{}, func(e *tree.Entry, r io.Reader) error {
		content, err := io.ReadAll(r)
		contents[e.Name] = content
		e.Content = someContent(e)
		return err
	}, func(e *tree.Entry) error {
		want = append(want, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range examples {
		_, ztoc := g.read(t)
		table, err := Decode(ztoc, tree.Limits{Entries: int64(len(want)), Bytes: int64(len(plain))})
		if err != nil {
			t.Fatalf("%s: %v", g.name, err)
		}
		if table.Tool != goldenTool || table.Compression != g.compression || table.SpanSize != g.spanSize ||
			table.PlainSize != int64(len(plain)) || table.Entries() != len(want) {
			t.Errorf("%s: got %q, %v, spans of %d, %d bytes, %d entries", g.name, table.Tool, table.Compression,
				table.SpanSize, table.PlainSize, table.Entries())
		}
		found := map[string][]byte{}
		source := table.Layer(func(e *tree.Entry, offset int64) error {
			found[e.Name] = plain[offset : offset+e.Size]
			e.Content = someContent(e)
			return nil
		})
		for _, e := range want {
			got, err := source.Next()
			if err != nil {
				t.Fatalf("%s: %v", g.name, err)
			}
			// A zTOC has IDs of 32 bits. tree.Apply uses no more of them.
			e.UID, e.GID = int(uint32(e.UID)), int(uint32(e.GID))
			if !reflect.DeepEqual(got, e) {
				t.Errorf("%s: got %+v, want %+v", g.name, got, e)
			}
		}
		if _, err := source.Next(); err != io.EOF {
			t.Errorf("%s: after the last entry: got %v, want EOF", g.name, err)
		}
		if !reflect.DeepEqual(found, contents) {
			t.Errorf("%s: the contents differ", g.name)
		}
	}
}

// someContent returns a content of the entry's size that tree.Scan accepts.
func someContent(e *tree.Entry) tree.Content {
	if e.Size <= tree.InlineLimit {
		return tree.Content{Inline: make([]byte, e.Size)}
	}
	return tree.Content{Extents: []tree.Extent{{Length: e.Size}}}
}

func TestSpansReturnThePlainLayer(t *testing.T) {
	for _, g := range examples {
		layer, ztoc := g.read(t)
		minimum := 3
		if g.name == "gzip" { // it writes a single block
			minimum = 1
		}
		checkSpans(t, g.name, layer, sampleTar(), ztoc, minimum)
	}
}

// Where spans end is known late, so more of the layer than a buffer has to be read.
func TestSpansOfALargeLayer(t *testing.T) {
	noise := make([]byte, 1<<20)
	random := rand.NewChaCha8([32]byte{})
	if _, err := random.Read(noise); err != nil {
		t.Fatal(err)
	}
	plain := tarball.Of(tarball.File("noise", string(noise)))
	layer := member(t, plain)
	ztoc, err := Make(bytes.NewReader(layer), Options{Gzip, 100_000, goldenTool, tree.Limits{}, nil})
	if err != nil {
		t.Fatal(err)
	}
	checkSpans(t, "noise", layer, plain, ztoc, 5)
}

// checkSpans checks that all spans together, at least so many, are the plain layer.
func checkSpans(t *testing.T, name string, layer, plain, ztoc []byte, minimum int) {
	t.Helper()
	table, err := Decode(ztoc, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if table.Spans() < minimum {
		t.Errorf("%s: %d spans, want at least %d", name, table.Spans(), minimum)
	}
	var all []byte
	for i := range table.Spans() {
		s := table.Span(i)
		if s.Plain.Start != int64(len(all)) {
			t.Fatalf("%s: span %d begins at plain byte %d, want %d", name, i, s.Plain.Start, len(all))
		}
		if s.Plain.Len() > 0 && (table.SpanAt(s.Plain.Start) != i || table.SpanAt(s.Plain.End-1) != i) {
			t.Errorf("%s: SpanAt does not find span %d", name, i)
		}
		r, err := s.Open(layer[s.Compressed.Start:s.Compressed.End])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		part, err := io.ReadAll(r)
		if err != nil {
			t.Fatalf("%s: span %d: %v", name, i, err)
		}
		all = append(all, part...)
	}
	if !bytes.Equal(all, plain) {
		t.Errorf("%s: the spans have %d bytes, want %d, or they differ", name, len(all), len(plain))
	}
}

// Version 1 of the zinfo of gzip has no first checkpoint.
func TestOldZinfo(t *testing.T) {
	layer, _ := examples[1].read(t)
	m := maker{options: Options{Gzip, 40_000, goldenTool, tree.Limits{}, nil}}
	if err := m.readGzip(bytes.NewReader(layer)); err != nil {
		t.Fatal(err)
	}
	m.zinfo = append(m.zinfo[:zinfoHeader:zinfoHeader], m.zinfo[zinfoHeader+checkpointSize:]...)
	ztoc, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	table, err := Decode(ztoc, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	s := table.Span(0)
	r, err := s.Open(layer[s.Compressed.Start:s.Compressed.End])
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, sampleTar()[:s.Plain.End]) {
		t.Errorf("got %d bytes (%v), want %d", len(got), err, s.Plain.End)
	}
}

// A node reads all files of a layer by its table. Files that cross spans have chunks in each.
func TestMap(t *testing.T) {
	noise := make([]byte, 3_000_000)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(noise) // it never fails
	contents := map[string]string{"large": string(noise), "small": "small", "zeros": strings.Repeat("\x00", 2<<20)}
	plain := tarball.Of(tarball.File("large", contents["large"]), tarball.File("small", contents["small"]),
		tarball.File("zeros", contents["zeros"]))
	for compression, blob := range map[Compression][]byte{Gzip: member(t, plain), Uncompressed: plain} {
		ztoc, err := Make(bytes.NewReader(blob), Options{compression, 100_000, goldenTool, tree.Limits{}, nil})
		if err != nil {
			t.Fatal(err)
		}
		table, err := Decode(ztoc, tree.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := table.Map(chunk.Sum(blob), 7, nil); err == nil {
			t.Error("a zTOC of another size was mapped")
		}
		last := table.Spans() - 1
		l, err := table.Map(chunk.Sum(blob), int64(len(blob)), []Spans{{First: 7, Last: 9}, {First: last, Last: last},
			{First: 8, Last: 10, Priority: -1}, {First: 2, Last: 2}})
		if err != nil {
			t.Fatal(err)
		}
		// All spans but the last one, which has the end of the tar, have a part of a file.
		if want := []uint32{2, 7, 8, 9, 10}; !slices.Equal(l.First, want) {
			t.Errorf("%s: a start reads the units %v, want %v", compression, l.First, want)
		}
		if got := readMapped(t, l, blob); !maps.Equal(got, contents) {
			t.Errorf("%s: the files differ", compression)
		}
	}
}

// readMapped returns the contents of a layer's files.
func readMapped(t *testing.T, l *layer.Layer, blob []byte) map[string]string {
	t.Helper()
	var b bytes.Buffer
	if _, err := l.Table.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	table, err := layer.OpenTable(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for source := l.Source(); ; {
		e, err := source.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		var content []byte
		for _, x := range e.Content.Extents {
			u, err := table.Unit(l.Units[x.ID])
			if err != nil {
				t.Fatal(err)
			}
			batch, err := u.Decode(blob[u.Offset:][:u.Stored])
			if err != nil {
				t.Fatal(err)
			}
			plain, err := batch.Lookup(x.ID)
			if err != nil || int64(len(plain)) != x.Length || x.Length > chunk.MaxLength {
				t.Fatalf("a chunk of %d bytes has %d: %v", x.Length, len(plain), err)
			}
			content = append(content, plain...)
		}
		files[e.Name] = string(content)
	}
}
