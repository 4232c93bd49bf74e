package stargz

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
)

// A row has its own values, whatever the row before it has, and however its strings are escaped.
func TestRowsAreIndependent(t *testing.T) {
	const day = "2024-01-01T00:00:0"
	escaped := strings.Replace(one, "s", `\u0073`, 1)
	l, err := decodeJSON(t, StargzZstd, tableOf(
		`{"type": "dir", "name": "a", "modtime": "`+day+`0Z"}`,
		`{"type": "d\u0069r", "name": "b\n\"\u00fc\\", "modtime": "`+day+`0\u005a"}`,
		`{"type": "dir", "name": "c"}`,
		`{"type": "dir", "name": "d", "modtime": "`+day+`1Z", "modtime": null}`,
		`{"type": "dir", "name": "e", "modtime": "`+day+`1Z", "modtime": "`+day+`2Z"}`,
		`{"type": "reg", "name": "f", "size": 1, "offset": 5, "digest": `+one+`, "chunkDigest": `+escaped+`}`,
		`{"type": "reg", "name": "f", "size": 1, "offset": 6, "chunkDigest": `+escaped+`, "digest": `+one+`}`,
		`{"type": "reg", "name": "f", "size": 2, "offset": 7, "digest": `+two+`}`,
		`{"type": "reg", "name": "f", "size": 3, "offset": 8, "chunkSize": 1, "digest": `+one+`,
			"chunkDigest": `+one+`}`,
		`{"type": "chunk", "name": "f", "offset": 9, "chunkOffset": 1, "digest": `+two+`, "chunkDigest": `+two+`}`,
		`{"type": "reg", "name": "f"}`,
	))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range l.entries {
		text := fmt.Sprint(e.Name, " ", e.Mtime.Sec)
		for _, x := range e.Content.Extents {
			text += fmt.Sprint(" ", x.Length, " ", x.ID == chunk.Sum([]byte("1")), " ", x.ID == chunk.Sum([]byte("22")))
		}
		got = append(got, text)
	}
	want := []string{"a 1704067200", "b\n\"ü\\ 1704067200", "c 0", "d 1704067201", "e 1704067202", "f 0 1 true false",
		"f 0 1 true false", "f 0 2 false true", "f 0 1 true false 2 false true", "f 0"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
