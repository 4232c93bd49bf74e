package fsck

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/hub/catalog"
)

// The objects after a key are those whose IDs are after lastUpTo.
func TestLastUpTo(t *testing.T) {
	var ids []chunk.ID
	for _, text := range []string{"0000", "00ff", "0a00", "9fff", "a000", "fffe"} {
		id, err := chunk.ParseID(text + strings.Repeat("0", 60))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	for _, kind := range objectKinds {
		afters := []string{"", "0", "00ff", "README", "a", "a/b", "g", "~", ids[2].String(), ids[3].String() + ".zst",
			ids[3].String() + ".zst2", ids[4].String() + ".zs"}
		for i := range afters {
			afters[i] = kind.prefix + afters[i]
		}
		for _, after := range append(afters, "", "a", "q", strings.TrimSuffix(kind.prefix, "/")) {
			last := lastUpTo(kind.key, after)
			for _, id := range ids[1:] {
				if got, want := slices.Compare(id[:], last[:]) > 0, kind.key(id) > after; got != want {
					t.Errorf("%s is after %q: %v, want %v", kind.key(id), after, got, want)
				}
			}
		}
	}
}

// A lost claim of objects says nothing about the layer that was being restored: the check has to
// run again, and not to report that the layer is lost.
func TestLostClaimIsTransient(t *testing.T) {
	err := errors.Join(errors.New("another blob is damaged"), fmt.Errorf("restore a blob: %w", catalog.ErrClaimLost))
	if got := (&Checker{}).transient(t.Context(), err); !errors.Is(got, catalog.ErrClaimLost) {
		t.Errorf("transient returned %v, want the lost claim", got)
	}
}
