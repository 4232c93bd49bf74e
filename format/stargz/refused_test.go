package stargz

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/tree"
)

// zstdOf compresses a text.
func zstdOf(t testing.TB, text string) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return enc.EncodeAll([]byte(text), nil)
}

// decodeJSON decodes a table in a layer whose files end at offset 10,000.
func decodeJSON(t testing.TB, format Format, text string) (*Layer, error) {
	t.Helper()
	stored := zstdOf(t, text)
	table := Table{Format: format, Offset: 10_008, Length: int64(len(stored)), DataEnd: 10_000,
		PlainLength: int64(len(text)), Stored: chunk.Sum(stored), Plain: chunk.Sum([]byte(text))}
	return Decode(t.Context(), table, bytes.NewReader(stored))
}

// digestOf returns the digest of a text as tables have it.
func digestOf(s string) string { return "sha256:" + chunk.Sum([]byte(s)).String() }

var (
	one = `"` + digestOf("1") + `"`
	two = `"` + digestOf("22") + `"`
)

func tableOf(rows ...string) string {
	return `{"version": 1, "entries": [` + strings.Join(rows, ",") + `]}`
}

// A table that is wrong is refused as a whole.
func TestDecodeRefuses(t *testing.T) {
	reg := func(fields string) string { return `{"type": "reg", "name": "f", ` + fields + `}` }
	for text, want := range map[string]string{
		``:                              "unexpected EOF",
		`[]`:                            "got [, want {",
		`{"version": 1, "entries": [`:   "unexpected EOF",
		`{"version": 1, "entries": [{}`: "unknown type",
		`{"version": 1, "entries": {}}`: `read "entries": got {, want [`,
		`{"entries": []}`:               "version 0, want 1",
		`{"version": 2, "entries": []}`: "version 2, want 1",
		tableOf() + " 1":                "something follows the end of the table",
		tableOf() + "x":                 "something follows the end of the table",
		`{"version": 1, "entries": [], "entries": []}`: "two lists of entries",
		tableOf(`null`):                                                  `row 0, "": unknown type ""`,
		tableOf(`{"type": "reg", "size": ""}`):                           `"" is not an integer`,
		tableOf(`{"type": "reg", "size": 1.5}`):                          "1.5 is not an integer",
		tableOf(`{"type": "reg", "size": 9223372036854775808}`):          "9223372036854775808 is not an integer",
		tableOf(`{"type": "reg", "name": 1}`):                            "1 is not a string",
		tableOf(`{"type": "dir", "n\u0061me": "a"}`):                     `the key n\u0061me is escaped`,
		`{"version": 1, "entri\u0065s": []}`:                             "is escaped",
		`{"version": 1, "entries": "` + strings.Repeat("a", 1000) + `"}`: strings.Repeat("a", 20) + "…",
		tableOf(`{"type": "dir", "xattrs": []}`):                         "got [, want {",
		tableOf(`{"type": "socket", "name": "s"}`):                       `row 0, "s": unknown type "socket"`,

		tableOf(`{"type": "dir", "name": "a\u0000b"}`):                    "name: it has a NUL",
		tableOf(`{"type": "dir", "name": "a` + "\xff" + `b"}`):            "name: it has bytes that are not UTF-8",
		tableOf(`{"type": "dir", "name": "a\ufffdb"}`):                    "name: it has bytes that are not UTF-8",
		tableOf(`{"type": "symlink", "name": "a", "linkName": "\ud800"}`): "link target: it has bytes that are not UTF-8",
		tableOf(`{"type": "dir", "name": "a", "xattrs": {"user.\ufffd": ""}}`): `extended attribute "user.` + "\ufffd" +
			`": it has bytes`,
		tableOf(`{"type": "dir", "name": "a", "xattrs": {"user.x": "%"}}`):        "illegal base64 data",
		tableOf(`{"type": "dir", "name": "a", "modtime": "yesterday"}`):           `"yesterday" is not in RFC 3339`,
		tableOf(`{"type": "chunk", "name": "f", "chunkDigest": ` + one + `}`):     "a chunk of no file",
		tableOf(`{"type": "dir", "name": "f"}`, `{"type": "chunk", "name": "f"}`): "a chunk of no file",

		tableOf(reg(`"size": -1`)):                                                                      "file of -1 bytes",
		tableOf(reg(`"size": 1, "offset": 5`)):                                                          "a file without a digest",
		tableOf(reg(`"size": 1, "offset": 5, "digest": "sha512:00"`)):                                   `digest "sha512:00" is not a SHA-256`,
		tableOf(reg(`"size": 1, "offset": 5, "digest": "sha256:00"`)):                                   `parse ID "00"`,
		tableOf(reg(`"size": 1, "offset": 5, "digest": "` + strings.ToUpper(digestOf("1")) + `"`)):      "is not a SHA-256",
		tableOf(reg(`"size": 1, "offset": 5, "digest": "sha256:` + strings.Repeat("0", 64) + `"`)):      "digest of zeros",
		tableOf(reg(`"size": 1, "offset": 5, "chunkDigest": "sha256:` + strings.Repeat("0", 64) + `"`)): "digest of zeros",
		tableOf(reg(`"size": 0, "digest": ` + one)):                                                     "the digest of an empty file is that of another file",
		tableOf(reg(`"size": 1, "offset": 5, "digest": ` + one + `, "chunkDigest": ` + two)):            "the file's digest is",
		tableOf(reg(`"size": 1, "offset": -1, "digest": ` + one)):                                       "a chunk at offset -1 in the layer",
		tableOf(reg(`"size": 1, "offset": 10000, "digest": ` + one)):                                    "a chunk at offset 10000 in the layer",
		tableOf(reg(`"size": 1, "offset": 9223372036854775807, "digest": ` + one)):                      "a chunk at offset 9223372036854775807",
		tableOf(reg(`"size": 1, "offset": 5, "innerOffset": -1, "digest": ` + one)):                     "and -1 inside",
		tableOf(reg(`"size": 1, "offset": 5, "innerOffset": 268435456, "digest": ` + one)):              "a chunk of 1 bytes is 268435456",
		tableOf(reg(`"size": 1, "offset": 5, "innerOffset": 9223372036854775807, "digest": ` + one)):    "a chunk of 1 bytes is",
		tableOf(reg(`"size": 60000000000, "offset": 5, "digest": ` + one)):                              "a chunk of 60000000000 bytes, the limit is 8388608",
		tableOf(reg(`"size": 5, "offset": 5, "endOffset": 5, "digest": ` + one)):                        "it ends at 5, before its begin",
		tableOf(reg(`"size": 5, "offset": 5, "endOffset": 10001, "digest": ` + one)):                    "it ends at 10001, before its begin or after",
		tableOf(reg(`"size": 1, "offset": 5, "chunkType": "other", "digest": ` + one)):                  `a chunk of type "other"`,
	} {
		expectError(t, text, want)
	}
}

// The chunks of a file have to tile it, and its chunks have to be in different places.
func TestDecodeRefusesChunks(t *testing.T) {
	// A file of 3 bytes, in chunks of 1 and 2.
	first := `{"type": "reg", "name": "f", "size": 3, "offset": 5, "chunkSize": 1, "chunkDigest": ` + one + `}`
	second := func(fields string) string {
		for _, field := range []string{`"name": "f"`, `"offset": 6`, `"chunkDigest": ` + two} {
			if name, _, _ := strings.Cut(field, ":"); !strings.Contains(fields, name+":") {
				fields += ", " + field
			}
		}
		return `{"type": "chunk", ` + fields + `}`
	}
	whole := func(name, fields, digest string) string {
		return `{"type": "reg", "name": "` + name + `", "digest": ` + digest + `, ` + fields + `}`
	}
	if _, err := decodeJSON(t, EStargz+1, tableOf(first, second(`"chunkOffset": 1`))); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		tableOf(first): `the chunks of file "f" have 1 bytes of 3`,
		tableOf(first, `{"type": "dir", "name": "d"}`):                         `the chunks of file "f" have 1 bytes of 3`,
		tableOf(first, second(`"chunkOffset": 2`)):                             "a chunk at offset 2 of the file, want it at 1",
		tableOf(first, second(`"chunkOffset": 0`)):                             "a chunk at offset 0 of the file, want it at 1",
		tableOf(first, second(`"chunkOffset": -1`)):                            "a chunk at offset -1 of the file",
		tableOf(first, second(`"chunkOffset": 1, "chunkSize": 1`)):             `the chunks of file "f" have 2 bytes of 3`,
		tableOf(first, second(`"chunkOffset": 1, "chunkSize": 3`)):             "a chunk of 3 bytes at offset 1 of a file of 3",
		tableOf(first, second(`"chunkOffset": 1, "chunkSize": -2`)):            "a chunk of -2 bytes at offset 1",
		tableOf(first, second(`"chunkOffset": 1`), second(`"chunkOffset": 3`)): "a chunk behind the end of a file of 3 bytes",
		tableOf(first, second(`"chunkOffset": 1, "name": "g"`)):                `a chunk of another file than "f"`,
		tableOf(first, second(`"chunkOffset": 1, "chunkDigest": ""`)):          "a chunk without a digest",
		tableOf(first, second(`"chunkOffset": 1, "offset": 5`)): "the part of the layer at offset 5: a chunk of 2 bytes is 0 " +
			"bytes inside: it overlaps the one before",
		tableOf(whole("a", `"size": 1, "offset": 5`, one), whole("b", `"size": 2, "offset": 5`, two)): "it overlaps the one before",
		tableOf(whole("a", `"size": 2, "offset": 5, "innerOffset": 7`, two),
			whole("b", `"size": 1, "offset": 5, "innerOffset": 8`, one)): "it overlaps the one before",
		tableOf(whole("a", `"size": 1, "offset": 5, "endOffset": 8`, one),
			whole("b", `"size": 2, "offset": 7`, two)): "it ends at 8, before its begin or after the next part's, 7",
		tableOf(whole("a", `"size": 1, "offset": 5`, one), whole("b", `"size": 2, "offset": 7`, one)): "has 2 bytes, and elsewhere 1",
		tableOf(whole("a", `"size": 1, "offset": 5`, one), whole("b", `"size": 2, "offset": 5, "innerOffset": 9`, one)): "has 2 bytes, " +
			"and elsewhere 1",
	} {
		expectError(t, text, want)
	}
}

func expectError(t *testing.T, text, want string) {
	t.Helper()
	l, err := decodeJSON(t, ContainersZstd, text)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s:\ngot %v, %v\nwant an error with %q", shorten(text), l, err, want)
	}
}

// Names and links that a tar can have are left to tree.Apply, which does what containerd does.
func TestEntriesAreAppliedAsContainerdUnpacksThem(t *testing.T) {
	for text, want := range map[string]string{
		tableOf(`{"type": "hardlink", "name": "a", "linkName": "b"}`,
			`{"type": "hardlink", "name": "b", "linkName": "a"}`): `entry "a": link to "b": no such file or directory`,
		tableOf(`{"type": "hardlink", "name": "a", "linkName": "a"}`):                                       `entry "a": link to "a": no such file or directory`,
		tableOf(`{"type": "hardlink", "name": "a", "linkName": "../../b"}`, `{"type": "reg", "name": "b"}`): "no such file",
		tableOf(`{"type": "dir", "name": "d"}`, `{"type": "hardlink", "name": "a", "linkName": "d"}`):       "it is a directory",
		tableOf(`{"type": "symlink", "name": "a"}`):                                                         "link target of 0 bytes",
		tableOf(`{"type": "char", "name": "a", "devMajor": -1}`):                                            "device number -1:0",
		tableOf(`{"type": "reg", "name": "a"}`, `{"type": "reg", "name": "a/b"}`):                           "not a directory",
		tableOf(`{"type": "dir", "name": "` + strings.Repeat("d", 256) + `"}`):                              "file name too long",
		tableOf(`{"type": "reg", "name": "a", "size": 20000000000000, "chunkType": "zeros"}`):               "file of 20000000000000 bytes",
	} {
		l, err := decodeJSON(t, StargzZstd, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		_, err = tree.Apply(t.Context(), []tree.LayerSource{l.Source()}, tree.Limits{})
		var refused *tree.EntryError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\ngot %v\nwant an EntryError with %q", text, err, want)
		}
	}
	for _, text := range []string{tableOf(), `{"version": 1}`, `{"entries": null, "version": 1, "other": {"a": [1]}}`} {
		if l, err := decodeJSON(t, ContainersZstd, text); err != nil || len(l.entries) != 0 || len(l.units) != 0 {
			t.Errorf("%s: got %v, want an empty layer", text, err)
		}
	}
	l, err := decodeJSON(t, StargzZstd, tableOf(
		`{"type": "reg", "name": "../../up", "size": 1, "offset": 5, "digest": `+one+`}`,
		`{"type": "reg", "name": "/twice", "size": 1, "offset": 6, "digest": `+one+`}`,
		`{"type": "reg", "name": "./x/../twice", "size": 2, "offset": 7, "digest": `+two+`}`,
		`{"type": "hardlink", "name": "a/b/link", "linkName": "/up"}`))
	if err != nil {
		t.Fatal(err)
	}
	tr, err := tree.Apply(t.Context(), []tree.LayerSource{l.Source()}, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range tr.Root.Children() {
		got = append(got, fmt.Sprintf("%s %o n%d %d", c.Name, c.Node.Mode, c.Node.Nlink, c.Node.Size))
	}
	if want := "a 40755 n3 0, twice 100000 n1 2, up 100000 n2 1"; strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
}

// A table's bytes have to match all of the digests and lengths that are known.
func TestDecodeChecksDigests(t *testing.T) {
	blob, a := stored(t, "stargz-zstd.blob"), annotations(t, "stargz-zstd")
	table, _, err := Locate(a, int64(len(blob)))
	if err != nil {
		t.Fatal(err)
	}
	text := blob[table.Offset:][:table.Length]
	with := func(change func(t *Table)) Table { c := table; change(&c); return c }
	changed := bytes.Clone(text)
	changed[len(changed)-1] ^= 1
	for name, c := range map[string]struct {
		table Table
		text  []byte
		want  string
	}{
		"another digest of the plain bytes": {with(func(t *Table) { t.Plain[0]++ }), text,
			"its plain bytes: their digest is"},
		"another digest of the stored bytes": {with(func(t *Table) { t.Stored[0]++ }), text,
			"its stored bytes: their digest is"},
		"another length":       {with(func(t *Table) { t.Length++ }), text, ": unexpected EOF"},
		"another plain length": {with(func(t *Table) { t.PlainLength-- }), text, "its plain bytes: "},
		"a changed byte":       {table, changed, "decode the table of contents of a layer (zstd:chunked of stargz-"},
		"a missing byte":       {table, text[:len(text)-1], "EOF"},
		"more bytes":           {table, append(bytes.Clone(text), 0), ""},
		"another format":       {with(func(t *Table) { t.Format = EStargz }), text, "gzip"},
		"no format":            {with(func(t *Table) { t.Format = 0 }), text, "unknown format"},
	} {
		_, err := Decode(t.Context(), c.table, bytes.NewReader(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
		if isInvalid := errors.As(err, new(*chunk.InvalidError)); isInvalid == (name == "no format") {
			t.Errorf("%s: got %v, which is an InvalidError: %t", name, err, isInvalid)
		}
	}
	broken := io.MultiReader(bytes.NewReader(text[:10]), errReader{})
	_, err = Decode(t.Context(), table, broken)
	if !errors.Is(err, errRead) || errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("got %v, want the reader's error", err)
	}
}

var errRead = errors.New("read failed")

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errRead }

// The annotations have to name one table, which lies in the blob.
func TestLocateRefuses(t *testing.T) {
	digest, other := digestOf("1"), digestOf("2")
	for name, c := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"three numbers":  {map[string]string{Position: "100:10:20"}, "want offset:length:plain length:type"},
		"no number":      {map[string]string{Position: "100:10:x:1"}, "want four numbers"},
		"a negative one": {map[string]string{ContainersPosition: "-100:10:20:1"}, "want four numbers"},
		"another type":   {map[string]string{Position: "100:10:20:2"}, "table of type 2, want 1"},
		"two places": {map[string]string{Position: "100:10:20:1", ContainersPosition: "100:11:20:1"},
			"two places"},
		"at the begin":     {map[string]string{Position: "0:10:20:1"}, "table at 0+10 in a layer of 1000 bytes"},
		"before the frame": {map[string]string{Position: "7:10:20:1"}, "table at 7+10 in a layer of 1000 bytes"},
		"behind the end":   {map[string]string{Position: "1001:10:20:1"}, "table at 1001+10 in a layer of 1000 bytes"},
		"over the end":     {map[string]string{Position: "100:901:20:1"}, "table at 100+901 in a layer of 1000 bytes"},
		"an overflow":      {map[string]string{Position: "100:9223372036854775807:20:1"}, "in a layer of 1000 bytes"},
		"empty":            {map[string]string{Position: "100:0:20:1"}, "table at 100+0 in a layer of 1000 bytes"},
		"too large": {map[string]string{Position: "100:10:1073741825:1"},
			"table of 1073741825 plain bytes, the limit is 1073741824"},
		"a malformed digest": {map[string]string{Position: "100:10:20:1", TableDigest: "sha256:1"},
			"annotation containerd.io/snapshot/stargz/toc.digest: digest"},
		"another algorithm": {map[string]string{Position: "100:10:20:1", Checksum: "md5:1"}, "is not a SHA-256"},
		"two digests": {map[string]string{Position: "100:10:20:1", Checksum: digest, ContainersChecksum: other},
			"two digests of the table"},
	} {
		if _, found, err := Locate(c.annotations, 1000); err == nil || found || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %t, %v, want an error with %q", name, found, err, c.want)
		}
	}
	for _, a := range []map[string]string{nil, {TableDigest: digest}, {ContainersChecksum: digest}} {
		if _, found, err := Locate(a, 1000); found || err != nil {
			t.Errorf("%v: got %t, %v, want false and no error", a, found, err)
		}
	}
	large := map[string]string{Position: fmt.Sprintf("100:%d:20:1", MaxStored+1)}
	if _, _, err := Locate(large, 1<<40); err == nil || !strings.Contains(err.Error(), "stored bytes, the limit is") {
		t.Errorf("got %v, want an error about the limit", err)
	}
}

// A footer has to be whole, and to name a table in the blob.
func TestLocateByFooterRefuses(t *testing.T) {
	for _, name := range []string{"estargz", "stargz-zstd", "containers", "skopeo-1.9", "external"} {
		blob := stored(t, name+".blob")
		size := int64(len(blob))
		end := blob[size-TailLength(size):]
		if table, err := LocateByFooter(nil, size, end); err != nil || table.Verifiable() {
			t.Fatalf("%s: got %+v, %v, want a table without a digest", name, table, err)
		}
		if _, err := LocateByFooter(nil, size, end[1:]); err == nil || !strings.Contains(err.Error(), "want 72") {
			t.Errorf("%s: got %v for a tail that is too short", name, err)
		}
		// Of these bytes from the end, all are fixed: magics and lengths.
		fixed := []int{1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 19}
		switch name {
		case "estargz":
			fixed = append(fixed, 36, 37, 38, 39, 40, 48, 49, 50, 51)
		case "external":
			fixed = append(fixed, 31, 32, 33, 34, 35, 43, 44, 45, 46)
		case "containers":
			fixed = []int{1, 2, 7, 8, 65, 66, 67, 68, 69, 72}
		default:
			fixed = []int{1, 2, 7, 8, 41, 42, 43, 44, 45, 48}
		}
		for _, i := range fixed {
			changed := bytes.Clone(end)
			changed[len(changed)-i] ^= 0x55
			if _, err := LocateByFooter(nil, size, changed); !errors.Is(err, ErrNoTable) {
				t.Errorf("%s: got %v for a footer with another byte %d, want %v", name, err, -i, ErrNoTable)
			}
		}
		// The blob is shorter than the table's place.
		if _, err := LocateByFooter(nil, TailLength(size), end); name != "external" && err == nil {
			t.Errorf("%s: a table outside the layer was accepted", name)
		}
	}
	for _, size := range []int64{0, 1, 50} {
		if _, err := LocateByFooter(nil, size, make([]byte, size)); !errors.Is(err, ErrNoTable) {
			t.Errorf("layer of %d bytes: got %v, want %v", size, err, ErrNoTable)
		}
	}
	tail := bytes.Clone(stored(t, "estargz.blob"))
	size := int64(len(tail))
	copy(tail[size-35:], "-000000000000001")
	if _, err := LocateByFooter(nil, size, tail); err == nil || !strings.Contains(err.Error(), "table at -1+") {
		t.Errorf("negative offset: got %v", err)
	}
	copy(tail[size-35:], "000000000000000x")
	_, err := LocateByFooter(nil, size, tail)
	if err == nil || !strings.Contains(err.Error(), "no hexadecimal number") {
		t.Errorf("no number: got %v", err)
	}
}

// Stargz, the predecessor of eStargz, has another footer with the same table.
func TestLegacyFooter(t *testing.T) {
	blob := stored(t, "estargz.blob")
	want, err := LocateByFooter(nil, int64(len(blob)), blob)
	if err != nil {
		t.Fatal(err)
	}
	footer := blob[len(blob)-51:]
	legacy := append(bytes.Clone(blob[:len(blob)-51]), footer[:10]...)
	legacy = append(append(append(legacy, 22, 0), footer[16:38]...), footer[38:]...)
	if got, err := LocateByFooter(nil, int64(len(legacy)), legacy); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// The annotations say which dialect of zstd:chunked a layer has: the footer is the same.
func TestDialects(t *testing.T) {
	for name, want := range map[string]Format{
		"stargz-zstd": StargzZstd, "containers": ContainersZstd, "skopeo-1.9": ContainersZstd, "estargz": EStargz,
		"external": EStargz,
	} {
		if table, _ := find(t, name, true); table.Format != want {
			t.Errorf("%s: got %s, want %s", name, table.Format, want)
		}
	}
	a := maps.Clone(annotations(t, "containers"))
	blob := stored(t, "containers.blob")
	byFooter, err := LocateByFooter(a, int64(len(blob)), blob)
	if err != nil {
		t.Fatal(err)
	}
	if byAnnotation, found, err := Locate(a, int64(len(blob))); err != nil || !found || byAnnotation != byFooter {
		t.Errorf("the annotations say %+v (%v), the footer says %+v", byAnnotation, err, byFooter)
	}
}
