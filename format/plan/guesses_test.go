package plan

import (
	"reflect"
	"slices"
	"testing"

	"lighter/format/trace"
)

// Guesses alone are laid out like starts. Beside real starts, they only add packs for chunks that
// no real start has read.
func TestGuessesBesideStarts(t *testing.T) {
	sizes, names := program(100)
	tr := sampleTree(t, sizes)
	guesses := []trace.Recording{reading(sizes, names[:40]...), reading(sizes, names[20:60]...)}
	packs := layWithGuesses(t, tr, nil, guesses...)
	if at := has(packs, names[0], sizes[names[0]]); at != 0 || !packs[0].AtMount {
		t.Errorf("the first guess is in pack %d of %d, want 0, fetched at mount", at, len(packs))
	}
	real := reading(sizes, append(slices.Clone(names[:10]), names[60:80]...)...)
	packs = layWithGuesses(t, tr, Keep(nil, []trace.Recording{real}), guesses...)
	if at := has(packs, names[70], sizes[names[70]]); at != 0 || !packs[0].AtMount {
		t.Errorf("a file of the real start is in pack %d of %d, want 0, fetched at mount", at, len(packs))
	}
	if at := has(packs, names[50], sizes[names[50]]); at < 1 || packs[at].AtMount {
		t.Errorf("a file of a guess is in pack %d of %d, want another than 0", at, len(packs))
	}
	if alone := lay(t, tr, Keep(nil, []trace.Recording{real})); packs[0].Bytes != alone[0].Bytes {
		t.Errorf("%d bytes are fetched at mount, want %d, as without guesses", packs[0].Bytes, alone[0].Bytes)
	}
}

// Guesses never change the packs of real starts, however many guesses there are.
func TestGuessesHaveNoWeight(t *testing.T) {
	sizes, names := program(400)
	tr := sampleTree(t, sizes)
	var kept, guesses []trace.Recording
	for range 8 {
		kept = Keep(kept, []trace.Recording{reading(sizes, names[:60]...)})
	}
	other := reading(sizes, slices.Concat(names[:50], names[100:120])...)
	kept = Keep(kept, []trace.Recording{other, other})
	for i := range maxWorkloads {
		guessed := reading(sizes, names[200+10*i:230+10*i]...)
		guesses = append(guesses, guessed)
	}
	alone, both := lay(t, tr, kept), layWithGuesses(t, tr, kept, guesses...)
	both = slices.DeleteFunc(both, func(p Pack) bool {
		return !slices.ContainsFunc(alone, func(q Pack) bool { return reflect.DeepEqual(p, q) })
	})
	if len(alone) != 3 || !reflect.DeepEqual(both, alone) {
		t.Errorf("beside guesses, %d of %d packs of real starts are unchanged, want all of 3", len(both), len(alone))
	}
}

// A guess is dropped once a real start has read half of it.
func TestGuessThatCameTrue(t *testing.T) {
	sizes, names := program(100)
	tr := sampleTree(t, sizes)
	real, guessed := reading(sizes, names[:60]...), reading(sizes, names[:90]...)
	alone := lay(t, tr, Keep(nil, []trace.Recording{real}))
	if both := layWithGuesses(t, tr, Keep(nil, []trace.Recording{real}), guessed); !reflect.DeepEqual(both, alone) {
		t.Errorf("with the guess there are other packs (%d) than without it (%d), want the same", len(both), len(alone))
	}
}
