package audit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/layer"
	"lighter/format/layer/audit"
	"lighter/format/soci"
	"lighter/format/stargz"
	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

// mapped is a layer with what its table says.
type mapped struct {
	*layer.Layer
	blob  []byte
	hides func(string) bool
}

// audited audits a blob with the layer's table. diffID is that of another blob.
func (m *mapped) audited(t *testing.T, blob, diffID []byte) error {
	t.Helper()
	var b bytes.Buffer
	if _, err := m.Table.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	table, err := layer.OpenTable(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return audit.Read(iotest.HalfReader(bytes.NewReader(blob)), audit.Claims{DiffID: chunk.Sum(plain(t, diffID)),
		Source: m.Source(), Table: table, Hides: m.hides}, tree.Limits{})
}

func plain(t *testing.T, blob []byte) []byte {
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

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// decoded reads the table of a blob with annotations.
func decoded(t *testing.T, blob []byte, annotations map[string]string) *mapped {
	t.Helper()
	size := int64(len(blob))
	table, found, err := stargz.Locate(annotations, size)
	if err == nil && !found {
		table, err = stargz.LocateByFooter(annotations, size, blob[size-stargz.TailLength(size):])
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := stargz.Decode(t.Context(), table, bytes.NewReader(blob[table.Offset:][:table.Length]))
	if err != nil {
		t.Fatal(err)
	}
	to, err := l.Map(chunk.Sum(blob), size)
	if err != nil {
		t.Fatal(err)
	}
	return &mapped{to, blob, table.Format.Hides}
}

func golden(t *testing.T, name string) *mapped {
	t.Helper()
	var annotations map[string]string
	if err := json.Unmarshal(read(t, "stargz/testdata/"+name+".json"), &annotations); err != nil {
		t.Fatal(err)
	}
	return decoded(t, read(t, "stargz/testdata/"+name+".blob"), annotations)
}

// written writes a layer in a format.
func written(t *testing.T, format stargz.Format, archive []byte) *mapped {
	t.Helper()
	encode := compress.GzipMember(gzip.BestSpeed)
	if format != stargz.EStargz {
		encode = compress.ZstdFrame(zstd.SpeedFastest, 1)
	}
	var b bytes.Buffer
	w, err := stargz.Write(t.Context(), &b, bytes.NewReader(archive), int64(len(archive)), stargz.Serial(encode),
		stargz.Options{Format: format})
	if err != nil {
		t.Fatal(err)
	}
	return decoded(t, b.Bytes(), w.Annotations)
}

// indexed returns a gzip layer with its zTOC.
func indexed(t *testing.T, archive []byte) *mapped {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(archive); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	ztoc, err := soci.Make(bytes.NewReader(b.Bytes()), soci.Options{Compression: soci.Gzip, SpanSize: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	return ofZTOC(t, b.Bytes(), ztoc)
}

func ofZTOC(t *testing.T, blob, ztoc []byte) *mapped {
	t.Helper()
	table, err := soci.Decode(ztoc, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := table.Map(chunk.Sum(blob), int64(len(blob)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &mapped{l, blob, nil}
}

// lines returns n bytes of text.
func lines(n int) string { return strings.Repeat("a line of text\n", n/15+1)[:n] }

// The tables that other programs and our own have written say what their layers have.
func TestTablesOfTheirLayers(t *testing.T) {
	layers := map[string]*mapped{}
	for _, name := range []string{"estargz", "estargz-prioritized", "estargz-shared", "stargz-zstd",
		"stargz-zstd-shared", "containers", "skopeo-1.9", "written-containers", "written-estargz", "written-zstd"} {
		layers[name] = golden(t, name)
	}
	for _, name := range []string{"gzip", "pigz", "members"} {
		of := "soci/testdata/" + name
		layers["zTOC "+name] = ofZTOC(t, read(t, of+".layer"), read(t, of+".ztoc"))
	}
	large := tarball.Of(tarball.File("large", lines(5<<20)), tarball.File("small", "small"),
		tarball.File("again", lines(5<<20)))
	layers["large file"] = written(t, stargz.EStargz, large)
	layers["large file, zstd"] = written(t, stargz.ContainersZstd, large)
	layers["large file, zTOC"] = indexed(t, large)
	for name, m := range layers {
		if err := m.audited(t, m.blob, m.blob); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func original() []tarball.Item {
	return []tarball.Item{tarball.Dir("etc"), tarball.File("etc/passwd", lines(2<<20), tarball.Owner(0, 0)),
		tarball.Symlink("etc/link", "passwd"), tarball.Link("etc/hard", "etc/passwd"),
		tarball.File("etc/small", "small", tarball.Xattr("user.a", "b")), tarball.Char("null", 1, 3)}
}

// The table of another layer is found in each format, whatever it says differently.
func TestTablesOfOtherLayers(t *testing.T) {
	formats := map[string]func(archive []byte) *mapped{
		"eStargz":      func(b []byte) *mapped { return written(t, stargz.EStargz, b) },
		"zstd:chunked": func(b []byte) *mapped { return written(t, stargz.ContainersZstd, b) },
		"SOCI":         func(b []byte) *mapped { return indexed(t, b) },
	}
	with := func(n int, item tarball.Item) []byte {
		all := original()
		all[n] = item
		return tarball.Of(all...)
	}
	for what, other := range map[string][]byte{
		"name of":             with(1, tarball.File("etc/shadow", lines(2<<20))),
		"mode of":             with(1, tarball.File("etc/passwd", lines(2<<20), tarball.Mode(0o4755))),
		"owner of":            with(1, tarball.File("etc/passwd", lines(2<<20), tarball.Owner(1, 0))),
		"size of":             with(1, tarball.File("etc/passwd", lines(2<<20+1))),
		"type of":             with(4, tarball.Dir("etc/small")),
		"link target of":      with(2, tarball.Symlink("etc/link", "shadow")),
		"device number of":    with(5, tarball.Char("null", 1, 5)),
		"extended attributes": with(4, tarball.File("etc/small", "small", tarball.Xattr("user.a", "c"))),
		"other bytes":         with(4, tarball.File("etc/small", "SMALL", tarball.Xattr("user.a", "b"))),
		"other bytes ":        with(1, tarball.File("etc/passwd", lines(2<<20-1)+"x")),
		"lacks the entry":     tarball.Of(append(original(), tarball.File("more", ""))...),
		"table lacks":         tarball.Of(original()[:5]...),
		"modification time":   with(0, tarball.Dir("etc", tarball.Time(1_000, 0))),
	} {
		for format, of := range formats {
			m, claimed := of(tarball.Of(original()...)), of(other)
			err := claimed.audited(t, m.blob, m.blob)
			if !errors.As(err, new(*audit.DifferenceError)) || !strings.Contains(broad(err), key(what)) {
				t.Errorf("%s, %s: got %v", format, what, err)
			}
		}
	}
}

// key returns the words of a message that a case stands for.
func key(what string) string { return strings.TrimSuffix(strings.TrimSpace(what), " of") }

// broad returns a message in which all ways to say that bytes differ are one. Chunks with derived
// IDs are compared through their units.
func broad(err error) string {
	text := err.Error()
	for _, s := range []string{"unit at ", "no unit has chunk"} {
		if strings.Contains(text, s) {
			text += ": other bytes"
		}
	}
	return text
}

// A layer whose table is right has the wrong diffID if the config is another image's.
func TestBorrowedDiffID(t *testing.T) {
	mine, victim := written(t, stargz.EStargz, tarball.Of(tarball.File("a", "mine"))),
		written(t, stargz.EStargz, tarball.Of(tarball.File("a", "victim")))
	err := mine.audited(t, mine.blob, victim.blob)
	if !errors.As(err, new(*audit.DifferenceError)) || !strings.Contains(err.Error(), "its diffID is ") {
		t.Errorf("got %v", err)
	}
}

// A zTOC whose checkpoints lead to other bytes than the tar has is found, although each span has
// the digest that the zTOC says.
func TestWrongCheckpoint(t *testing.T) {
	m := indexed(t, tarball.Of(original()...))
	table, units := rebuilt(t, m, func(u *layer.Unit) {
		if len(u.Window) > 0 {
			u.Window = bytes.ToUpper(u.Window)
		}
	})
	ids := map[chunk.ID]chunk.ID{}
	for i, u := range units {
		for j, c := range u.Chunks {
			ids[c.ID] = table[i].Chunks[j].ID
		}
	}
	source := m.Source
	b := layer.NewBuilder(chunk.Sum(m.blob), int64(len(m.blob)))
	for _, u := range table {
		if _, err := b.Add(u); err != nil {
			t.Fatal(err)
		}
	}
	m.Layer = &layer.Layer{Table: b, Source: func() tree.LayerSource { return &renamed{source(), ids} }}
	err := m.audited(t, m.blob, m.blob)
	if !errors.As(err, new(*audit.DifferenceError)) || !strings.Contains(err.Error(), "other bytes than its file") {
		t.Errorf("got %v", err)
	}
}

// rebuilt returns the units of a layer, changed and as they were. The changed ones have new IDs.
func rebuilt(t *testing.T, m *mapped, change func(*layer.Unit)) (changed, were []layer.Unit) {
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
		were = append(were, *u)
		to := *u
		to.Chunks = append([]layer.Chunk(nil), u.Chunks...)
		change(&to)
		for i, c := range to.Chunks {
			to.Chunks[i].ID = to.Key().Derive(c.Offset, c.Length)
		}
		changed = append(changed, to)
	}
	return changed, were
}

// renamed reads entries with other chunks.
type renamed struct {
	from tree.LayerSource
	ids  map[chunk.ID]chunk.ID
}

func (r *renamed) Next() (*tree.Entry, error) {
	e, err := r.from.Next()
	if err == nil {
		for i, x := range e.Content.Extents {
			e.Content.Extents[i].ID = r.ids[x.ID]
		}
	}
	return e, err
}

// Units that overlap are refused before they are all decoded.
func TestOverlappingUnits(t *testing.T) {
	m := indexed(t, tarball.Of(original()...))
	changed, _ := rebuilt(t, m, func(*layer.Unit) {})
	b := layer.NewBuilder(chunk.Sum(m.blob), int64(len(m.blob)))
	for _, u := range []layer.Unit{changed[0], changed[0]} {
		if _, err := b.Add(u); err != nil {
			t.Fatal(err)
		}
	}
	m.Layer = &layer.Layer{Table: b, Source: m.Source}
	if err := m.audited(t, m.blob, m.blob); err == nil || !strings.Contains(err.Error(), "overlap") {
		t.Errorf("got %v", err)
	}
}

// A blob that does not arrive says nothing about its table.
func TestBlobThatDoesNotArrive(t *testing.T) {
	m := written(t, stargz.EStargz, tarball.Of(original()...))
	failed := errors.New("the connection broke")
	err := audit.Read(io.MultiReader(bytes.NewReader(m.blob[:1000]), iotest.ErrReader(failed)),
		audit.Claims{Source: m.Source(), Table: open(t, m)}, tree.Limits{})
	if err != failed {
		t.Errorf("got %v", err)
	}
	err = m.audited(t, m.blob[:1000], m.blob) // the caller finds that its digest is wrong
	if !errors.As(err, new(*audit.DifferenceError)) || !strings.Contains(err.Error(), "it cannot be unpacked") {
		t.Errorf("a blob that is cut off: %v", err)
	}
}

func open(t testing.TB, m *mapped) *layer.Table {
	t.Helper()
	var b bytes.Buffer
	if _, err := m.Table.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	table, err := layer.OpenTable(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// A blob that inflates to more than the limit ends there. It says nothing about its table.
func TestBomb(t *testing.T) {
	m := indexed(t, tarball.Of(tarball.File("zeros", strings.Repeat("\x00", 4<<20))))
	err := audit.Read(bytes.NewReader(m.blob), audit.Claims{Source: m.Source(), Table: open(t, m)},
		tree.Limits{Bytes: 1 << 20})
	if !errors.As(err, new(*tree.LimitError)) || errors.As(err, new(*audit.DifferenceError)) {
		t.Errorf("got %v", err)
	}
}

// The sum of a table's entries depends on each field of them.
func TestSum(t *testing.T) {
	sum := func(items ...tarball.Item) chunk.ID {
		id, err := audit.Sum(written(t, stargz.EStargz, tarball.Of(items...)).Source())
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	seen := map[chunk.ID]bool{sum(original()...): true}
	for n, item := range []tarball.Item{tarball.Dir("etc", tarball.Mode(0o700)),
		tarball.File("etc/passwd", lines(2<<20-1)+"x"), tarball.Symlink("etc/link", "x"), tarball.Link("etc/hard", "x"),
		tarball.File("etc/small", "small", tarball.Xattr("user.a", "c")), tarball.Char("null", 1, 4)} {
		all := original()
		if n == 3 {
			all = append(all[:3:3], tarball.File("x", ""), item, all[4], all[5])
		} else {
			all[n] = item
		}
		id := sum(all...)
		if seen[id] {
			t.Errorf("entry %d: the sum is that of another layer", n)
		}
		seen[id] = true
	}
	if id := sum(original()...); !seen[id] {
		t.Error("equal entries have another sum")
	}
}
