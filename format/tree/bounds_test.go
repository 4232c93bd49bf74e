package tree

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"lighter/test/testkit/tarball"
)

// attributes returns n extended attributes; different n have different names.
func attributes(from, n int, value string) []tarball.Option {
	var options []tarball.Option
	for i := range n {
		options = append(options, tarball.Xattr(fmt.Sprintf("user.%06d", from+i), value))
	}
	return options
}

// links returns a file and hard links to it, each of which adds n attributes that sort first.
func links(count, n int, value string) []byte {
	items := []tarball.Item{tarball.File("f", "")}
	for i := range count {
		items = append(items, tarball.Link(fmt.Sprint("l", i), "f", attributes((count-i)*n, n, value)...))
	}
	return tarball.Of(items...)
}

func TestAttributesOfOneInodeAreBounded(t *testing.T) {
	full := strings.Repeat("v", maxKeptValue)
	// The size of an attribute of six digits in EROFS: 4 bytes, the digits and the value, padded to
	// a multiple of 4.
	last := func(value int) []byte {
		return tarball.Of(tarball.File("f", "",
			append(attributes(0, 3, full), tarball.Xattr("user.000009", full[:value]))...))
	}
	room := maxXattrsSize - 12 - 3*(4+6+len(full)+3) - 4 - 6
	for name, c := range map[string]struct {
		layer []byte
		bound string // that the error names, if there is one
	}{
		"as many as there may be":      {links(4, 256, ""), ""},
		"one too many, in one entry":   {tarball.Of(tarball.File("f", "", attributes(0, maxXattrs+1, "")...)), "1024"},
		"too many, by links":           {links(5, 256, ""), "1024"},
		"as many bytes as EROFS holds": {last(room), ""},
		"more bytes than EROFS holds":  {last(room + 1), "262148"},
		"more bytes, by links":         {links(5, 1, full), "262148"},
		"many for directories they are": {tarball.Of(tarball.Dir("d", attributes(0, 600, "")...),
			tarball.Dir("d", attributes(600, 600, "")...)), "1024"},
	} {
		_, err := applyTar(Limits{}, c.layer)
		var refused *EntryError
		if c.bound == "" && err != nil || c.bound != "" &&
			(!errors.As(err, &refused) || !strings.Contains(err.Error(), c.bound)) {
			t.Errorf("%s: got %v, want an error with %q (none if empty)", name, err, c.bound)
		}
	}
}

// TestMemoryOfAChainIsBounded exceeds the budget by one byte with each kind of bytes.
func TestMemoryOfAChainIsBounded(t *testing.T) {
	acl := "\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x04\x00\x05\x00\xff\xff\xff\xff" +
		"\x10\x00\x05\x00\xff\xff\xff\xff" + "\x20\x00\x04\x00\xff\xff\xff\xff"
	withACL := &Entry{Type: '5', Name: "d", Mode: 0o755, Xattrs: []Xattr{{Name: DefaultACL, Value: []byte(acl)}}}
	attribute := int64(64 + len(accessACL) + len(acl))
	for name, c := range map[string]struct {
		entries []*Entry
		bytes   int64 // that the last entry adds to the budget
	}{
		"a name": {[]*Entry{{Type: '0', Name: "0123456789"}}, 10},
		// The entry's name, which is kept for the directory's time, and the inode's.
		"a directory's":      {[]*Entry{{Type: '5', Name: "./0123"}}, 6 + 4},
		"parent directories": {[]*Entry{{Type: '0', Name: "012/345/6"}}, 7},
		"a whiteout":         {[]*Entry{{Type: '0', Name: ".wh.0123"}}, 0}, // in the lowest layer
		"a link":             {[]*Entry{{Type: '2', Name: "l", Linkname: "01234567"}}, 1 + 8},
		"an attribute": {[]*Entry{{Type: '0', Name: "f",
			Xattrs: []Xattr{{Name: "user.a", Value: []byte("12")}}}}, 1 + 64 + 8},
		"one of a link": {[]*Entry{{Type: '0', Name: "f"},
			{Type: '1', Name: "g", Linkname: "f", Xattrs: []Xattr{{Name: "user.a"}}}}, 1 + 64 + 6},
		"one again": {[]*Entry{{Type: '5', Name: "d", Xattrs: []Xattr{{Name: "user.a"}}},
			{Type: '5', Name: "d", Xattrs: []Xattr{{Name: "user.a"}}}}, 1 + 64 + 6},
		"an inherited list": {[]*Entry{withACL, {Type: '6', Name: "d/f"}}, 1 + attribute},
		"a directory's two": {[]*Entry{withACL, {Type: '5', Name: "d/e"}}, 3 + 1 + 2*attribute + 1},
		// "default" has a byte more than "access"
		"two parent directories": {[]*Entry{withACL, {Type: '0', Name: "d/e/"}, {Type: '0', Name: "d/g/f"}},
			1 + 1 + 2*attribute + 1 + attribute},
		"an inline content": {[]*Entry{{Type: '0', Name: "f", Size: 5,
			Content: Content{Inline: []byte("12345")}}}, 1 + 5},
		"a list of chunks": {[]*Entry{{Type: '0', Name: "f", Size: 1 << 20,
			Content: Content{Extents: []Extent{{Length: 1 << 19}, {Length: 1 << 19}}}}}, 1 + 80},
	} {
		for _, over := range []int64{0, 1} {
			u := newUnpacker(&budget{ctx: t.Context()}, nil)
			var err error
			for i, e := range c.entries {
				if i == len(c.entries)-1 {
					u.budget.kept = maxKept - c.bytes + over
				}
				err = errors.Join(err, u.unpack(e))
			}
			var beyond *LimitError
			if over == 0 && err != nil || over == 1 && c.bytes > 0 &&
				(!errors.As(err, &beyond) || beyond.Limit != maxKept) {
				t.Errorf("%s, %d bytes over the budget: got %v, want a LimitError only above the budget",
					name, over, err)
			}
		}
	}
}

// Attributes that a directory copies from a lower layer count in the memory of the chain, too.
func TestMemoryOfCopiedAttributesIsBounded(t *testing.T) {
	for _, over := range []int64{0, 1} {
		b := &budget{ctx: t.Context()}
		lower := newUnpacker(b, nil)
		like := &Entry{Type: '5', Name: "d", Xattrs: []Xattr{{Name: "user.a", Value: []byte("12")}}}
		if err := lower.unpack(like); err != nil {
			t.Fatal(err)
		}
		lower.seal()
		b.kept = maxKept - int64(len("d")+64+len("user.a")+2+len("f")) + over
		err := newUnpacker(b, []*volume{lower.volume}).unpack(&Entry{Type: '0', Name: "d/f"})
		var beyond *LimitError
		if over == 0 && err != nil || over == 1 && !errors.As(err, &beyond) {
			t.Errorf("%d bytes over the budget: got %v, want a LimitError only above the budget", over, err)
		}
	}
}

func TestErrorOfATimeNamesItsEntry(t *testing.T) {
	_, err := Apply(context.Background(), []LayerSource{&entries{list: []*Entry{
		{Type: '5', Name: "./a/"}, {Type: '2', Name: "a", Linkname: "b"}}}}, Limits{})
	var refused *EntryError
	if !errors.As(err, &refused) || refused.Entry != "./a/" {
		t.Errorf("got %v, want an EntryError that names ./a/", err)
	}
}

// opaqueMarkers returns a deep path with many files at its end, and a marker that makes each
// directory of the path opaque. Each marker visits all of the files.
func opaqueMarkers(depth, files int) []*Entry {
	var entries []*Entry
	dir := ""
	for range depth {
		dir += "d/"
		entries = append(entries, &Entry{Type: '5', Name: dir})
	}
	for i := range files {
		entries = append(entries, &Entry{Type: '0', Name: fmt.Sprint(dir, i)})
	}
	for n := range depth {
		entries = append(entries, &Entry{Type: '0', Name: dir[:2*(n+1)] + OpaqueMarker})
	}
	return entries
}

// Nested opaque markers are bounded by the limit of lookups, and end with the context.
func TestOpaqueMarkersAreBounded(t *testing.T) {
	const depth, files = 100, 10_000
	b := &budget{ctx: t.Context()}
	u := newUnpacker(b, nil)
	var err error
	for i, e := range opaqueMarkers(depth, files) {
		if i == depth+files { // what comes now are markers
			b.steps = maxSteps - depth*files/2
		}
		if err = u.unpack(e); err != nil {
			break
		}
	}
	var beyond *LimitError
	if !errors.As(err, &beyond) || beyond.Limit != maxSteps {
		t.Errorf("got %v, want a LimitError of %d", err, maxSteps)
	}

	// One marker visits more nodes than there are steps between two checks of the context.
	b = &budget{ctx: t.Context()}
	u = newUnpacker(b, nil)
	entries := opaqueMarkers(1, 2*checkEvery)
	for _, e := range entries[:len(entries)-1] {
		if err := u.unpack(e); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.ctx = ctx
	if err := u.unpack(entries[len(entries)-1]); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled context: got %v, want Canceled", err)
	}
}

// The marks of removed paths count as memory of the chain.
func TestMarksAreBounded(t *testing.T) {
	b := &budget{ctx: t.Context(), kept: maxKept - 1<<20}
	u := newUnpacker(b, nil)
	var err error
	for i := 0; i < 10_000 && err == nil; i++ {
		name := fmt.Sprintf("%04d", i)
		for _, e := range []*Entry{{Type: '0', Name: name}, {Type: '0', Name: WhiteoutPrefix + name}} {
			if err == nil {
				err = u.unpack(e)
			}
		}
	}
	var beyond *LimitError
	if !errors.As(err, &beyond) || beyond.Limit != maxKept {
		t.Errorf("10,000 marks: got %v, want a LimitError of %d", err, maxKept)
	}
}
