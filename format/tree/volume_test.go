package tree

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestDirectory compares a directory with a map, for all kinds of sizes.
func TestDirectory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	v := newVolume(&budget{ctx: t.Context()})
	want := map[string]*Node{}
	for i := range 20_000 {
		// The number of names grows and shrinks repeatedly.
		name := fmt.Sprint(r.IntN(60))
		n := want[name]
		if got := v.lookup(v.root, name); got != n {
			t.Fatalf("step %d: lookup of %q = %p, want %p", i, name, got, n)
		}
		grow := i/500%2 == 0
		switch {
		case n == nil && (grow || r.IntN(4) == 0):
			want[name] = &Node{Mode: ModeRegular}
			if err := v.insert(v.root, name, want[name]); err != nil {
				t.Fatal(err)
			}
		case n != nil && (!grow || r.IntN(4) == 0):
			v.remove(v.root, name)
			delete(want, name)
			if n.Nlink != 0 {
				t.Fatalf("%d links after removal, want 0", n.Nlink)
			}
		}
		if len(v.root.children) != len(want) {
			t.Fatalf("step %d: %d names, want %d", i, len(v.root.children), len(want))
		}
	}
	v.seal()
	if !slices.IsSortedFunc(v.root.children, func(a, b Dirent) int { return cmp.Compare(a.Name, b.Name) }) {
		t.Error("names are not sorted")
	}
	for i := range 60 {
		if name := fmt.Sprint(i); v.lookup(v.root, name) != want[name] {
			t.Errorf("%q is another node", name)
		}
	}
}
