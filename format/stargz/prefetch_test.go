package stargz

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The files before the landmark come first in the blob, in the order in which the writer got them.
func TestPrefetch(t *testing.T) {
	for name, want := range map[string]Prefetch{
		// estargz.Build puts the target of a hard link before the link. The link has no content.
		"estargz-prioritized": {Known: true, Files: []string{"usr/bin/large", "etc/small"}, Units: 8},
		"stargz-zstd":         {Known: true, Files: []string{"usr/bin/large", "etc/small"}, Units: 8},
		"estargz":             {Known: true},
		"external":            {Known: true},
		"containers":          {},
		"skopeo-1.9":          {},
	} {
		_, l := find(t, name, false)
		got := l.Prefetch()
		if got.Known != want.Known || !slices.Equal(got.Files, want.Files) || got.Units != want.Units {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

// The contents of whiteouts, and of what is not shown, are in no unit. They end the unit before.
func TestDroppedContents(t *testing.T) {
	reg := func(name string, offset int, text string) string {
		return fmt.Sprintf(`{"type": "reg", "name": %q, "size": %d, "offset": %d, "digest": %q}`, name, len(text), offset,
			digestOf(text))
	}
	l, err := decodeJSON(t, EStargz+1, tableOf(reg("a", 10, "1"), reg("d/.wh.b", 20, "22"), reg(landmark, 30, "333"),
		reg("..", 40, "4444"), reg("c", 50, "55555"), reg(tableName, 60, "666666")))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range l.units {
		got = append(got, fmt.Sprintf("%d+%d", u.offset, u.length))
	}
	if want := []string{"10+10", "50+10"}; !slices.Equal(got, want) {
		t.Errorf("units: got %q, want %q", got, want)
	}
	for _, e := range l.entries {
		if isFile := e.Name == "a" || e.Name == "c"; (e.Size > 0) != isFile || (len(e.Content.Extents) > 0) != isFile {
			t.Errorf("%q: %d bytes in %d extents", e.Name, e.Size, len(e.Content.Extents))
		}
	}
}

// Landmarks count only in the root, and in the formats that have them. They are shown nowhere else.
func TestFilesOfTheFormat(t *testing.T) {
	reg := func(name, fields string) string {
		return `{"type": "reg", "name": "` + name + `", ` + fields + `, "digest": ` + one + `}`
	}
	text := tableOf(reg("first", `"size": 1, "offset": 10`), `{"type": "reg", "name": "empty"}`,
		reg("dir/.prefetch.landmark", `"size": 1, "offset": 20`), reg("./.prefetch.landmark", `"size": 1, "offset": 30`),
		`{"type": "reg", "name": "/stargz.index.json", "size": 0}`,
		strings.ReplaceAll(reg("last", `"size": 2, "offset": 40`), one, two))
	names := func(f Format) (shown []string, p Prefetch) {
		l, err := decodeJSON(t, f, text)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range l.entries {
			shown = append(shown, e.Name)
		}
		return shown, l.Prefetch()
	}
	want := []string{"first", "empty", "dir/.prefetch.landmark", "last"}
	got, p := names(StargzZstd)
	if !slices.Equal(got, want) || !p.Known || p.Units != 1 ||
		!slices.Equal(p.Files, []string{"first", "dir/.prefetch.landmark"}) {
		t.Errorf("got %q, %+v, want %q", got, p, want)
	}
	want = []string{"first", "empty", "dir/.prefetch.landmark", "./.prefetch.landmark", "/stargz.index.json", "last"}
	if got, p := names(ContainersZstd); !slices.Equal(got, want) || p.Known {
		t.Errorf("got %q, %+v, want %q", got, p, want)
	}
	l, err := decodeJSON(t, StargzZstd, tableOf(reg("a", `"size": 1, "offset": 10`),
		reg(".prefetch.landmark", `"size": 1, "offset": 20`), reg(".no.prefetch.landmark", `"size": 1, "offset": 30`)))
	if err != nil {
		t.Fatal(err)
	}
	if p := l.Prefetch(); !p.Known || p.Units != 0 || p.Files != nil {
		t.Errorf("both landmarks: got %+v, want nothing to fetch", p)
	}
}

// A file of the format is hidden however its name is written.
func TestHides(t *testing.T) {
	for name, want := range map[string]bool{
		landmark: true, "/" + noLandmark: true, "a/../" + tableName + "/.": true, landmark + "/a/..": true,
		"a": false, "a/" + landmark: false, landmark + "/..": false, landmark + "s": false, "": false,
	} {
		if got := StargzZstd.Hides(name); got != want {
			t.Errorf("%q is hidden: %t, want %t", name, got, want)
		}
		if ContainersZstd.Hides(name) {
			t.Errorf("%q is hidden in a format that has no such files", name)
		}
	}
}
