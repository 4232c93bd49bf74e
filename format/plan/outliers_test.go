package plan

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"lighter/format/trace"
)

// absurd returns recordings of odd starts, by their descriptions. None predicts what other starts
// of the image read.
func absurd(sizes map[string]int, names []string) map[string]trace.Recording {
	r := rand.New(rand.NewPCG(2, 2))
	random := slices.Clone(names)
	r.Shuffle(len(random), func(i, j int) { random[i], random[j] = random[j], random[i] })
	pages := reading(sizes, random[:60]...)
	for i := range pages.Entries {
		pages.Entries[i].Length = 1
	}
	whole := slices.Sorted(maps.Keys(sizes))
	slices.Reverse(whole)
	return map[string]trace.Recording{
		"random files":      reading(sizes, random[:40]...),
		"random pages":      pages,
		"the whole image":   reading(sizes, whole...),
		"nothing in common": reading(sizes, "/big/file"),
		"an early end":      reading(sizes, names[:5]...),
		"the same, backwards, and more": func() trace.Recording {
			back := slices.Clone(names[:80])
			slices.Reverse(back)
			return reading(sizes, append(back, names[200:300]...)...)
		}(),
	}
}

// alsoIn reports whether others has all of the packs, unchanged and in the same order.
func alsoIn(packs, others []Pack) bool {
	for _, p := range others {
		if len(packs) > 0 && reflect.DeepEqual(p, packs[0]) {
			packs = packs[1:]
		}
	}
	return len(packs) == 0
}

// One odd start beside three of another workload does not change their packs. It gets packs of its
// own, and counts once it repeats.
func TestOneOddStartAmongOthers(t *testing.T) {
	sizes, names := program(400)
	sizes["/big/file"] = 300
	tr := sampleTree(t, sizes)
	python, root, server := reading(sizes, names[:100]...), reading(sizes, names[:160]...), reading(sizes,
		slices.Concat(names[:60], names[300:340])...)
	for others, kept := range map[string][]trace.Recording{
		"three of one kind":     {python, python, python},
		"two of two kinds":      {python, root, python, root},
		"three of three":        {python, root, server, python, root, server, python, root, server},
		"and another odd start": {python, python, python, reading(sizes, names[350:360]...)},
	} {
		kept = Keep(nil, kept)
		alone := lay(t, tr, kept)
		if others == "and another odd start" {
			alone = alone[:1] // the two odd starts may have chunks in common
		}
		for what, odd := range absurd(sizes, names) {
			packs := lay(t, tr, Keep(kept, []trace.Recording{odd}))
			if !packs[0].AtMount || !alsoIn(alone, packs) {
				t.Errorf("%s, and an odd start (%s): the packs of the others have changed, want the same", others, what)
			}
			if what == "nothing in common" && has(packs, "/big/file", sizes["/big/file"]) < 1 {
				t.Errorf("%s, and an odd start (%s): the odd chunks are in pack %d, want 1 or more", others, what,
					has(packs, "/big/file", sizes["/big/file"]))
			}
		}
	}
	// An odd start does not change the packs of a guess either.
	kept := Keep(nil, []trace.Recording{python, python, python})
	guess := reading(sizes, names[200:260]...)
	alone := layWithGuesses(t, tr, kept, guess)
	for what, odd := range absurd(sizes, names) {
		if packs := layWithGuesses(t, tr, Keep(kept, []trace.Recording{odd}), guess); !alsoIn(alone, packs) {
			t.Errorf("an odd start (%s): the packs of a guess have changed, want the same", what)
		}
	}
	odd := reading(sizes, "/big/file")
	if packs := lay(t, tr, Keep(nil, []trace.Recording{python, python, python, odd, odd})); packs[0].AtMount {
		t.Error("an odd start has repeated, and chunks that it does not read are still fetched at mount")
	}
}

// Every workload has one start. A start that reads little of the chunks that all others share does
// not keep these chunks from being fetched at mount.
func TestOddOneOfSingleStarts(t *testing.T) {
	sizes, names := program(400)
	sizes["/big/file"] = 300
	tr := sampleTree(t, sizes)
	kinds := []trace.Recording{reading(sizes, names[:60]...), reading(sizes, names[:120]...),
		reading(sizes, slices.Concat(names[:70], names[130:200])...),
		reading(sizes, slices.Concat(names[:60], names[210:240])...)}
	kept := Keep(nil, kinds)
	alone := lay(t, tr, kept)
	for _, what := range []string{"random files", "random pages", "nothing in common"} {
		if packs := lay(t, tr, Keep(kept, []trace.Recording{absurd(sizes, names)[what]})); !alsoIn(alone, packs) {
			t.Errorf("beside an odd start (%s): the packs of the others have changed, want the same", what)
		}
	}
	for what, odd := range absurd(sizes, names) {
		packs := lay(t, tr, Keep(kept, []trace.Recording{odd}))
		if what != "an early end" && !(packs[0].AtMount && has(packs[:1], names[59], sizes[names[59]]) == 0) {
			t.Errorf("beside an odd start (%s): the common files are in pack %d, want 0, fetched at mount", what,
				has(packs, names[59], sizes[names[59]]))
		}
	}
	// The odd start may also be the first one, and the others may read the same files in any order.
	r := rand.New(rand.NewPCG(1, 1))
	var shuffled []trace.Recording
	for i := range 4 {
		files := slices.Concat(names[:40], names[100+40*i:140+40*i])
		r.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
		shuffled = append(shuffled, reading(sizes, files...))
	}
	alone = lay(t, tr, Keep(nil, shuffled))
	for _, at := range []int{0, 4} {
		if packs := lay(t, tr, Keep(nil, slices.Insert(slices.Clone(shuffled), at,
			absurd(sizes, names)["random files"]))); !alsoIn(alone, packs) {
			t.Errorf("beside an odd start at position %d: the packs of the others have changed, want the same", at)
		}
	}
	// A start that reads a part of what others read is no outlier. If two starts are odd, neither
	// is an outlier.
	for _, all := range [][]trace.Recording{{kinds[0], kinds[1], kinds[2], reading(sizes, names[:20]...)},
		{kinds[1], reading(sizes, names[300:390]...)},
		{kinds[0], reading(sizes, "/big/file"), kinds[1], reading(sizes, names[300:390]...)}} {
		last, packs := all[len(all)-1], lay(t, tr, Keep(nil, all))
		for i, r := range all {
			if fetched, used := fetch(packs, tr, r); fetched > used*11/10 {
				t.Errorf("beside a start of %d files, start %d fetches %d bytes and reads %d, want at most 11/10",
					len(last.Entries), i, fetched, used)
			}
		}
	}
}
