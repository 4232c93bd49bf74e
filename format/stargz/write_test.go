package stargz

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

func encodeFor(f Format) func([]byte) ([]byte, error) {
	if f == EStargz {
		return compress.GzipMember(6)
	}
	return compress.ZstdFrame(zstd.SpeedDefault, 2)
}

// written writes a layer, and reads it back.
func written(t testing.TB, archive []byte, c Compressor, o Options) ([]byte, Written, *Layer, error) {
	t.Helper()
	var out bytes.Buffer
	w, err := Write(t.Context(), &out, bytes.NewReader(archive), int64(len(archive)), c, o)
	if err != nil {
		return nil, Written{}, nil, err
	}
	blob := out.Bytes()
	size := int64(len(blob))
	if w.Size != size || w.Digest != chunk.Sum(blob) {
		t.Errorf("Write says %d bytes, %s; the layer has %d", w.Size, w.Digest.Short(), size)
	}
	plain := layerTar(t, blob)
	if diff := chunk.Sum(plain); w.DiffID != diff || w.PlainSize != int64(len(plain)) {
		t.Errorf("Write says that the diffID is %s, of %d bytes, it is %s, of %d", w.DiffID.Short(), w.PlainSize,
			diff.Short(), len(plain))
	}
	byFooter, err := LocateByFooter(w.Annotations, size, blob)
	if err != nil {
		t.Fatal(err)
	}
	if o.Format != EStargz {
		table, found, err := Locate(w.Annotations, size)
		if err != nil || !found || table != byFooter {
			t.Errorf("the annotations say %+v (%v), the footer %+v", table, err, byFooter)
		}
	}
	l, err := Decode(t.Context(), byFooter, bytes.NewReader(blob[byFooter.Offset:][:byFooter.Length]))
	if err != nil {
		t.Fatal(err)
	}
	return blob, w, l, nil
}

// A written layer has the tree of the tar that it was written of, as a table and as a tar.
func TestWrittenLayersHaveTheTreeOfTheirTar(t *testing.T) {
	for _, o := range []Options{
		{Format: EStargz, Chunk: 50_000},
		{Format: EStargz, Chunk: 50_000, Prioritized: prioritized, Pending: 4},
		{Format: EStargz},
		{Format: StargzZstd, Chunk: 50_000},
		{Format: StargzZstd, Chunk: 1000, Prioritized: prioritized},
		{Format: ContainersZstd, Chunk: 50_000, Pending: 3},
	} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			blob, w, l, err := written(t, sourceTar(), Serial(encodeFor(o.Format)), o)
			if err != nil {
				t.Fatal(err)
			}
			compareTrees(t, ContainersZstd, l, blob, sourceTar())
			compareTars(t, layerTar(t, blob), sourceTar())
			p := l.Prefetch()
			if want := len(o.Prioritized) > 0; (len(p.Files) > 0) != want || p.Known != (want || o.Format == EStargz) {
				t.Errorf("prefetch: got %+v", p)
			}
			isSame := w.DiffID == chunk.Sum(sourceTar())
			if want := o.Format != EStargz && o.Prioritized == nil; isSame != want {
				t.Errorf("the diffID is that of the tar: %t, want %t", isSame, want)
			}
		})
	}
}

// compareTars compares the trees of two tars, apart from the files of the format.
func compareTars(t *testing.T, got, want []byte) {
	t.Helper()
	listed := func(archive []byte) (lines []string) {
		for _, line := range listing(t, nil, scanned(t, archive, ContainersZstd).Source()) {
			path, _, _ := strings.Cut(line, " ")
			if !isOwnFile(strings.TrimPrefix(path, "/")) {
				lines = append(lines, line)
			}
		}
		return lines
	}
	if a, b := listed(got), listed(want); !slices.Equal(a, b) {
		t.Errorf("the tars differ:\n%s\n\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
}

// All unusual layers that a table can express are written as they are.
func TestOddLayersAreWritten(t *testing.T) {
	refused := map[string]int{}
	for _, c := range tarball.Odd() {
		for _, o := range []Options{{Format: EStargz}, {Format: StargzZstd}, {Format: ContainersZstd}} {
			var tables, tars []tree.LayerSource
			for _, layer := range c.Layers {
				_, _, l, err := written(t, layer, Serial(encodeFor(o.Format)), o)
				if err != nil {
					refused[c.Name]++
					break
				}
				tables = append(tables, l.Source())
				tars = append(tars, scannedOdd(t, layer))
			}
			if len(tables) < len(c.Layers) {
				continue
			}
			got, err := tree.Apply(t.Context(), tables, tree.Limits{})
			want, wantErr := tree.Apply(t.Context(), tars, tree.Limits{})
			if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
				t.Errorf("%s, %s: got %v, want %v", c.Name, o.Format, err, wantErr)
			}
			if err == nil && names(got.Root) != names(want.Root) {
				t.Errorf("%s, %s: got\n%s\nwant\n%s", c.Name, o.Format, names(got.Root), names(want.Root))
			}
		}
	}
	t.Logf("refused: %v", refused)
	if len(refused) > 60 || len(refused) < 5 {
		t.Errorf("%d chains were refused: %v", len(refused), refused)
	}
}

// An unusual layer has the same tree, whichever of its paths is prioritized.
func TestOddLayersWithPrioritizedFiles(t *testing.T) {
	layers := [][]byte{tarball.Of(tarball.File("t", "old"), tarball.Link("l", "t"), tarball.File("t", "new!"))}
	for _, c := range tarball.Odd() {
		layers = append(layers, c.Layers...)
	}
	moved := 0
	for _, layer := range layers {
		o := Options{Format: StargzZstd}
		_, _, plain, err := written(t, layer, Serial(encodeFor(o.Format)), o)
		if err != nil {
			continue
		}
		want, wantErr := tree.Apply(t.Context(), []tree.LayerSource{plain.Source()}, tree.Limits{})
		tried := map[string]bool{}
		for _, e := range plain.entries {
			if tried[e.Name] || len(tried) == 16 {
				continue
			}
			tried[e.Name] = true
			o.Prioritized = []string{e.Name}
			_, w, l, err := written(t, layer, Serial(encodeFor(o.Format)), o)
			if err != nil {
				t.Errorf("%q first: %v", e.Name, err)
				continue
			}
			if w.DiffID != chunk.Sum(layer) {
				moved++
			}
			got, err := tree.Apply(t.Context(), []tree.LayerSource{l.Source()}, tree.Limits{})
			if (err == nil) != (wantErr == nil) || err == nil && names(got.Root) != names(want.Root) {
				t.Errorf("%q first: %v, %v, got\n%s\nwant\n%s", e.Name, err, wantErr, names(got.Root), names(want.Root))
			}
		}
	}
	if moved < 100 {
		t.Errorf("only %d layers have another order", moved)
	}
}

// scannedOdd reads a tar with format/tree, each file as one chunk.
func scannedOdd(t *testing.T, archive []byte) tree.LayerSource {
	t.Helper()
	s := scanned(t, archive, ContainersZstd)
	for _, e := range s {
		if e.Type == '0' && e.Content.Inline != nil && e.Size > 0 {
			e.Content = tree.Content{Extents: []tree.Extent{{ID: chunk.Sum(e.Content.Inline), Length: e.Size}}}
		}
	}
	return s.Source()
}

// names returns a text with everything in a directory.
func names(dir *tree.Node) string {
	var b strings.Builder
	for _, c := range dir.Children() {
		n := c.Node
		fmt.Fprintf(&b, "%q %o %d:%d n%d %v %#x %d %q %v %v {%s}\n", c.Name, n.Mode, n.UID, n.GID, n.Nlink, n.Mtime,
			n.Rdev, n.Size, n.Link, n.Xattrs, n.Content.Extents, names(n))
	}
	return b.String()
}

// Prioritized files come first and once, after their directories and the targets of hard links.
// Files of the format in the source are left out.
func TestPrioritizedFilesComeFirst(t *testing.T) {
	archive := tarball.Of(tarball.Dir("a"), tarball.File("a/b", "old"), tarball.File("a/target", "target"),
		tarball.File("c", "c"), tarball.Link("d/link", "a/target"), tarball.Link("d/second", "d/link"),
		tarball.File(landmark, "x"), tarball.File("a/b", "new"), tarball.File(tableName, "x"),
		tarball.File(noLandmark, "x"))
	o := Options{Format: EStargz, Prioritized: []string{"/c", "nowhere", "d/second", "./a/b", "c"}}
	blob, _, l, err := written(t, archive, Serial(encodeFor(EStargz)), o)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range l.entries {
		got = append(got, e.Name)
	}
	want := []string{"c", "a/", "a/target", "d/link", "d/second", "a/b"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if p := l.Prefetch(); !slices.Equal(p.Files, []string{"c", "a/target", "a/b"}) || p.Units != 3 {
		t.Errorf("got %+v", p)
	}
	got = nil
	for _, e := range scanned(t, layerTar(t, blob), ContainersZstd) {
		got = append(got, e.Name)
	}
	if want = append(want, landmark, tableName); !slices.Equal(got, want) {
		t.Errorf("the tar has %q, want %q", got, want)
	}
}

// A tar is searched for the targets of hard links a few times at most.
func TestChainsOfHardLinksAreBounded(t *testing.T) {
	for n, ok := range map[int]bool{maxLinkRounds: true, maxLinkRounds + 1: false} {
		items := []tarball.Item{tarball.File("0", "x")}
		for i := range n {
			items = append(items, tarball.Link(fmt.Sprint(i+1), fmt.Sprint(i)))
		}
		archive := tarball.Of(items...)
		size, c := int64(len(archive)), Serial(encodeFor(EStargz))
		o := Options{Format: EStargz, Prioritized: []string{fmt.Sprint(n)}}
		_, err := Write(t.Context(), io.Discard, bytes.NewReader(archive), size, c, o)
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "nested too deeply") {
			t.Errorf("%d links: got %v, want success: %t", n, err, ok)
		}
	}
}

// What is compressed in parallel has the same bytes.
func TestWriteInParallel(t *testing.T) {
	encode := encodeFor(EStargz)
	o := Options{Format: EStargz, Chunk: 10_000, Prioritized: prioritized, Pending: 8}
	serial, _, _, err := written(t, sourceTar(), Serial(encode), o)
	if err != nil {
		t.Fatal(err)
	}
	running, most := 0, 0
	parallel := func(plain []byte) func() ([]byte, error) {
		type result struct {
			b   []byte
			err error
		}
		done := make(chan result, 1)
		go func() {
			b, err := encode(plain)
			done <- result{b, err}
		}()
		running++
		most = max(most, running)
		return func() ([]byte, error) {
			r := <-done
			running--
			return r.b, r.err
		}
	}
	if got, _, _, err := written(t, sourceTar(), parallel, o); err != nil || !bytes.Equal(got, serial) {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(serial))
	}
	if most != o.Pending {
		t.Errorf("%d members at a time, want %d", most, o.Pending)
	}
}

// podmanTar is a layer with entries of all kinds that containers/storage can pull in parts. It
// fails for ".." in names.
func podmanTar() []byte {
	return tarball.Of(
		tarball.Dir("usr", tarball.Mode(0o2755)), tarball.File("usr/large", text(1, 200_000), tarball.Mode(0o4755)),
		tarball.Link("usr/hard", "usr/large", tarball.Mode(0o4755)), tarball.Symlink("usr/link", "large"),
		tarball.File("small", "small\n", tarball.Xattr("user.note", "a\x00b"), tarball.Time(1_600_000_000, 123)),
		tarball.File("empty", "", tarball.Time(-5, 0)), tarball.File("one", text(2, 50_000), tarball.Owner(5, 6)),
		tarball.File("zeros", strings.Repeat("\x00", 70_000), tarball.PAX("atime", "1500000000.5")),
		tarball.Dir(strings.Repeat("long-name/", 12)), tarball.File("unicode-\u00fc\u6587", "unicode"),
		tarball.Char("null", 1, 3), tarball.FIFO("fifo"),
	)
}

// The golden layers were verified by the libraries of stargz-snapshotter and of containers/storage
// when they were made.
func TestWriteGolden(t *testing.T) {
	for name, o := range map[string]Options{
		"written-estargz":    {Format: EStargz, Chunk: 50_000, Prioritized: prioritized},
		"written-zstd":       {Format: StargzZstd, Chunk: 50_000, Prioritized: prioritized},
		"written-containers": {Format: ContainersZstd, Chunk: 50_000},
	} {
		archive := sourceTar()
		if o.Format == ContainersZstd {
			archive = podmanTar()
		}
		got, w, _, err := written(t, archive, Serial(encodeFor(o.Format)), o)
		if err != nil {
			t.Fatal(err)
		}
		if os.Getenv("UPDATE_GOLDEN") != "" {
			text, err := json.MarshalIndent(w.Annotations, "", "\t")
			err = errors.Join(err, os.WriteFile(filepath.Join("testdata", name+".json"), append(text, '\n'), 0o644),
				os.WriteFile(filepath.Join("testdata", name+".blob"), got, 0o644))
			if err != nil {
				t.Fatal(err)
			}
			if o.Format == ContainersZstd {
				verifyByContainers(t, name, w.DiffID)
			} else {
				verifyByStargz(t, name, o.Format)
			}
		}
		if want := stored(t, name+".blob"); !bytes.Equal(got, want) {
			t.Errorf("%s: got %d bytes, want %d; they differ", name, len(got), len(want))
		}
	}
}

// FuzzWrite writes layers of any tar. What is written can be read, and has the tree of the tar.
func FuzzWrite(f *testing.F) {
	for _, c := range tarball.Odd() {
		if len(c.Layers[0]) < 3000 {
			f.Add(c.Layers[0], "a/b", byte(len(c.Name)))
		}
	}
	f.Fuzz(func(t *testing.T, archive []byte, first string, format byte) {
		o := Options{Format: EStargz + Format(format%3), Chunk: 1000}
		encode := Serial(encodeFor(o.Format))
		_, _, l, err := written(t, archive, encode, o)
		if err != nil {
			return
		}
		o.Prioritized = []string{first}
		_, _, other, err := written(t, archive, encode, o)
		if err != nil {
			t.Fatalf("with a prioritized file: %v", err)
		}
		limits := tree.Limits{Entries: 10_000}
		want, wantErr := tree.Apply(t.Context(), []tree.LayerSource{scannedOdd(t, archive)}, limits)
		for what, layer := range map[string]*Layer{"as it is": l, first + " first": other} {
			got, err := tree.Apply(t.Context(), []tree.LayerSource{layer.Source()}, limits)
			if (err == nil) != (wantErr == nil) || err == nil && sizes(got.Root) != sizes(want.Root) {
				t.Errorf("%s: got %v, %v, want %v, %v", what, got, err, want, wantErr)
			}
		}
	})
}

// sizes returns what names does, with the files' sizes in place of their extents.
func sizes(dir *tree.Node) string {
	var strip func(n *tree.Node)
	strip = func(n *tree.Node) {
		n.Content.Extents = nil
		for _, c := range n.Children() {
			strip(c.Node)
		}
	}
	strip(dir)
	return names(dir)
}

// What a table cannot express is refused, and so is what cannot be read or compressed.
func TestWriteRefuses(t *testing.T) {
	failed := errors.New("failed")
	fails := func([]byte) ([]byte, error) { return nil, failed }
	if _, _, _, err := written(t, sourceTar(), Serial(fails), Options{Format: EStargz}); !errors.Is(err, failed) {
		t.Errorf("got %v, want the compressor's error", err)
	}
	for _, size := range []int{-1, MaxChunk + 1} {
		_, _, _, err := written(t, sourceTar(), Serial(fails), Options{Format: EStargz, Chunk: size})
		if err == nil || !strings.Contains(err.Error(), "bytes, the limit is 8388608") {
			t.Errorf("chunks of %d bytes: got %v, want an error", size, err)
		}
	}
	sparse, attribute := tarball.PAX("GNU.sparse.major", "1"), tarball.Xattr("user.\xff", "")
	for want, c := range map[string]struct {
		archive []byte
		format  Format
	}{
		"has no place in a table":             {tarball.Of(tarball.Global("g")), EStargz},
		"not UTF-8, which the table has lost": {tarball.Of(tarball.File("a\xff", "")), StargzZstd},
		`attribute "user.\xff"`:               {tarball.Of(tarball.File("a", "", attribute)), StargzZstd},
		"unexpected EOF":                      {tarball.Of(tarball.File("a", "hello"))[:512], EStargz},
		"read the tar at offset 512":          {append(tarball.Open(tarball.Dir("d")), make([]byte, 100)...), EStargz},
		"sparse":                              {tarball.Of(tarball.File("a", "", sparse)), EStargz},
		"unknown format":                      {tarball.Of(), 0},
		"a second entry of the path":          {tarball.Of(tarball.Dir("a"), tarball.Dir("./a")), ContainersZstd},
	} {
		_, _, _, err := written(t, c.archive, Serial(encodeFor(c.format)), Options{Format: c.format})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// run runs a command of test/tools/storage.
func run(t *testing.T, command string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"run", command}, args...)...)
	cmd.Dir = "../../test/tools/storage"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

func absolute(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// verifyByContainers pulls a golden layer with the library of containers/storage, which compares
// all files with their digests, and the table with the tar-split. It needs root.
func verifyByContainers(t *testing.T, name string, diffID chunk.ID) {
	t.Helper()
	out := run(t, "./partialpull", absolute(t, name+".blob"), absolute(t, name+".json"), t.TempDir())
	if out != "sha256:"+diffID.String()+"\n" {
		t.Errorf("the library computed the diffID %s, want %s", out, diffID)
	}
}

// verifyByStargz reads a golden layer with stargz-snapshotter's library, which compares all chunks
// with their digests.
func verifyByStargz(t *testing.T, name string, f Format) {
	t.Helper()
	out := run(t, "./tableverify", absolute(t, name+".blob"), annotations(t, name)[TableDigest])
	want := fmt.Sprintf("usr/bin/large %s\n", chunk.Sum([]byte(text(1, 350_000))))
	if !strings.Contains(out, want) {
		t.Errorf("%s: the library read\n%s\nwithout %s", f, out, want)
	}
}

// Reading and writing end with their context.
func TestContexts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	archive := sourceTar()
	for _, first := range [][]string{nil, prioritized} {
		o := Options{Format: EStargz, Prioritized: first}
		_, err := Write(ctx, io.Discard, bytes.NewReader(archive), int64(len(archive)), Serial(encodeFor(EStargz)), o)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Write returned %v, want %v", err, context.Canceled)
		}
	}
	blob := stored(t, "containers.blob")
	table, _, err := Locate(annotations(t, "containers"), int64(len(blob)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Decode(ctx, table, bytes.NewReader(blob[table.Offset:][:table.Length]))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Decode returned %v, want %v", err, context.Canceled)
	}
	// A large file is written chunk by chunk.
	ctx, cancel = context.WithCancel(t.Context())
	encode := func(plain []byte) ([]byte, error) {
		cancel()
		return plain, nil
	}
	o := Options{Format: EStargz, Chunk: 1000}
	archive = tarball.Of(tarball.File("a", text(1, 100_000)))
	var out bytes.Buffer
	_, err = Write(ctx, &out, bytes.NewReader(archive), int64(len(archive)), Serial(encode), o)
	if !errors.Is(err, context.Canceled) || out.Len() > 3000 {
		t.Errorf("Write returned %v after %d bytes, want %v", err, out.Len(), context.Canceled)
	}
}
