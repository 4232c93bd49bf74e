package soci

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"

	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

// The list of what to prefetch names the spans of the files and of their parts, each in the topmost
// layer that has it.
func TestPrefetchOf(t *testing.T) {
	const spanSize = 4096
	big := strings.Repeat("x", 2*spanSize)
	table := func(items ...tarball.Item) *Table {
		var plain bytes.Buffer
		layer := tarball.Of(items...)
		ztoc, err := Make(bytes.NewReader(layer), Options{Uncompressed, spanSize, goldenTool, tree.Limits{}, &plain})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(plain.Bytes(), layer) {
			t.Errorf("Plain got %d bytes, want the layer of %d", plain.Len(), len(layer))
		}
		decoded, err := Decode(ztoc, tree.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return decoded
	}
	layers := []*Table{
		table(tarball.File("./a/low", "x"), tarball.File("both", big), tarball.File("big", big)),
		// The file both begins at 4096. It ends where the next span begins.
		table(tarball.Dir("dir/"), tarball.File("fill", big[:spanSize-3*512]), tarball.File("both", big[:spanSize]),
			tarball.Link("a/link", "/both"), tarball.Symlink("a/symlink", "both"), tarball.File("empty", ""),
			tarball.File("replaced", big), tarball.File("replaced", ""), tarball.Link("a/lost", "no/such")),
	}
	for p, want := range map[string][][]Spans{
		"a/low":          {{{First: 0, Last: 0}}, nil},
		"/a//low":        {{{First: 0, Last: 0}}, nil},
		"big":            {{{First: 2, Last: 4}}, nil},
		"both":           {nil, {{First: 1, Last: 1}}},
		"a/../both":      {nil, {{First: 1, Last: 1}}},
		"a/link":         {nil, {{First: 1, Last: 1}}},
		"both a/low big": {{{First: 0, Last: 0}, {First: 2, Last: 4}}, {{First: 1, Last: 1}}},
		"a/symlink":      {nil, nil},
		"empty":          {nil, nil},
		"replaced":       {nil, nil},
		"a/lost":         {nil, nil},
		"dir":            {nil, nil},
		"no/such":        {nil, nil},
		"../../etc":      {nil, nil},
		"":               {nil, nil},
	} {
		var parts []Part
		for path := range strings.SplitSeq(p, " ") {
			parts = append(parts, Part{Path: path})
		}
		if got, err := PrefetchOf(layers, parts); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, %v, want %v", p, got, err, want)
		}
	}
	// The file big is in spans 2 to 4 of the lower layer, and begins 1536 bytes inside.
	for p, want := range map[Part][]Spans{
		{"big", 0, 1}:                          {{First: 2, Last: 2}},
		{"big", spanSize, spanSize}:            {{First: 3, Last: 4}},
		{"big", 2*spanSize - 1, 1 << 40}:       {{First: 4, Last: 4}},
		{"big", 2*spanSize - 1, math.MaxInt64}: {{First: 4, Last: 4}},
		{"big", spanSize, 0}:                   {{First: 3, Last: 4}},
		{"big", 2 * spanSize, 1}:               nil,
		{"big", math.MaxInt64, math.MaxInt64}:  nil,
		{"big", -1, 1}:                         nil,
		{"big", 0, -1}:                         nil,
	} {
		if got, err := PrefetchOf(layers, []Part{p}); err != nil || !reflect.DeepEqual(got[0], want) || got[1] != nil {
			t.Errorf("%+v: got %v, %v, want %v", p, got, err, want)
		}
	}
}
