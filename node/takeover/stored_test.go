package takeover

import (
	"encoding/json"
	"testing"

	"lighter/node/fuse"
	"lighter/test/testkit/example"
)

// This daemon can read the note that an earlier daemon has left with the keeper. Daemons that know
// only version 1 can read the note, too, unless a journal is kept with it.
func TestStoredNote(t *testing.T) {
	want := note{Version: 2, Oldest: 1, Mount: "0:52", State: fuse.State{Minor: 45, Flags: 1 << 39, MaxPages: 256}}
	stored := example.Stored(t, "note-2.json", func() []byte {
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		return text
	})
	var got note
	if err := json.Unmarshal(stored, &got); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("got note %+v, want %+v", got, want)
	}
	if known := number(keptVersion); got.Oldest > known {
		t.Errorf("the note needs a daemon of version %d, want at most %d, this daemon's version", got.Oldest, known)
	}
}
