package disk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
)

// setOf returns the set of chunks from (included) to to (excluded).
func setOf(from, to, length int) *Set {
	s := &Set{}
	for i := from; i < to; i++ {
		ref, _ := data(i, length)
		s.Add(ref)
		s.Add(ref) // a chunk that was added twice counts once
	}
	return s
}

func countRange(t *testing.T, c *Cache, from, to, length int) (n int) {
	for i := from; i < to; i++ {
		if ref, plain := data(i, length); has(t, c, ref, plain) {
			n++
		}
	}
	return n
}

// Pinned chunks stay until they are unpinned, across restarts and Prune, wherever they lie and
// whatever is put. Chunks that are put after they were pinned stay as well.
func TestPinnedStays(t *testing.T) {
	dir := t.TempDir()
	const limit, length = 4 << 20, 20_000
	reopen := func() *Cache { return openSmall(t, dir, Limits{Size: limit}, limit/16) }
	c := reopen()
	stream := func(from int) {
		for i := range 400 {
			c.Put(data(from+i, length))
			if i%10 == 0 {
				c.Put(data(i/10+20, length)) // pinned, among others
			}
			if used := c.Stats().Used; used > limit {
				t.Fatalf("got %d bytes used, want at most %d", used, limit)
			}
		}
	}
	for i := range 20 {
		c.Put(data(i, length))
	}
	if err := c.Pin(chunk.ID{1}, "an image", setOf(0, 60, length)); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		stream(1000 * (round + 1))
		if n := countRange(t, c, 0, 60, length); n != 60 {
			t.Fatalf("round %d: got %d pinned chunks, want 60", round, n)
		}
		if round == 1 {
			if freed := c.Prune(); freed.Bytes == 0 || freed.Chunks == 0 {
				t.Errorf("Prune: got %+v, want bytes and chunks", freed)
			}
			if s := c.Stats(); s.Chunks != 60 || s.Used > 2*s.Pinned {
				t.Errorf("after Prune: got %+v, want the 60 pinned chunks, and few other bytes", s)
			}
		}
		c.Close()
		c = reopen()
		if pins := c.Pins(); len(pins) != 1 || pins[0] != (Pin{chunk.ID{1}, "an image", 60 * length, 60 * length}) {
			t.Fatalf("Pins: got %+v, want the one pin with all its chunks cached", pins)
		}
	}
	// Moving leaves nothing behind.
	if s := c.Stats(); s.Failed+s.Damaged+s.Unread > 0 || s.Pinned != 60*(recordSize(length)+tableEntry) {
		t.Errorf("got %+v, want the bytes of 60 records pinned, and no faults", s)
	}
	if was, err := c.Unpin(chunk.ID{1}); !was || err != nil {
		t.Errorf("Unpin: got %v, %v; want true, nil", was, err)
	}
	if was, err := c.Unpin(chunk.ID{1}); was || err != nil {
		t.Errorf("second Unpin: got %v, %v; want false, nil", was, err)
	}
	c.Prune()
	if s := c.Stats(); s.Chunks != 0 || s.Used != 0 || s.Pinned != 0 {
		t.Errorf("after Unpin and Prune: got %+v, want an empty cache", s)
	}
	c.Close()
	c = reopen()
	if len(c.Pins()) != 0 {
		t.Error("after a restart the pin is back")
	}
}

func TestPinsAreBounded(t *testing.T) {
	c := openSmall(t, t.TempDir(), Limits{Size: 4 << 20}, 1<<18)
	if err := c.Pin(chunk.ID{1}, "a", setOf(0, 50, 20_000)); err != nil {
		t.Fatal(err)
	}
	err := c.Pin(chunk.ID{2}, "b", setOf(100, 200, 20_000))
	if err == nil || !strings.Contains(err.Error(), "half") {
		t.Errorf("Pin of more than half: got %v, want an error that says so", err)
	}
	// Chunks that are pinned already cost nothing, and the same ID replaces a pin.
	if err := c.Pin(chunk.ID{2}, "b", setOf(0, 50, 20_000)); err != nil {
		t.Error(err)
	}
	if err := c.Pin(chunk.ID{2}, "b", setOf(20, 90, 20_000)); err != nil {
		t.Error(err)
	}
	if s := c.Stats(); s.Pinned != 90*(recordSize(20_000)+tableEntry) {
		t.Errorf("got %d bytes pinned, want those of 90 records", s.Pinned)
	}
	for i := range maxPins - 2 {
		if err := c.Pin(chunk.ID{9, byte(i)}, "x", &Set{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Pin(chunk.ID{10}, "x", &Set{}); err == nil {
		t.Error("the number of pins is not bounded")
	}
}

// A damaged pin pins nothing, and nothing else is lost.
func TestDamagedPin(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, MinLimit)
	for id := range 2 {
		if err := c.Pin(chunk.ID{byte(id)}, fmt.Sprint(id), setOf(id*10, id*10+10, 5000)); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	path := pinPath(dir, chunk.ID{})
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(good)
	flipped[30] ^= 1
	for _, b := range [][]byte{nil, good[:7], good[:len(good)-20], flipped, bytes.Repeat([]byte{255}, 100)} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c := open(t, dir, MinLimit)
		if pins := c.Pins(); len(pins) != 1 || pins[0].Label != "1" {
			t.Errorf("Pins: got %+v, want only the undamaged one", pins)
		}
		c.Close()
	}
}

// Evict frees the given chunks unless they are pinned. It moves the rest of a segment if that is
// worth it.
func TestEvict(t *testing.T) {
	dir := t.TempDir()
	c := openSmall(t, dir, Limits{Size: 8 << 20}, 200_000)
	const length = 20_000
	for i := range 90 {
		c.Put(data(i, length))
	}
	if err := c.Pin(chunk.ID{1}, "x", setOf(0, 3, length)); err != nil {
		t.Fatal(err)
	}
	gone := &Set{}
	for i := range 90 {
		if ref, _ := data(i, length); i%3 > 0 {
			gone.Add(ref)
		}
	}
	for _, i := range []int{4, 5} { // another image uses them
		ref, _ := data(i, length)
		gone.Remove(ref.ID)
	}
	before := c.Stats()
	freed := c.Evict(gone)
	after := c.Stats()
	if freed.Chunks != 56 || after.Chunks != 34 ||
		freed.Kept != 2*(recordSize(length)+tableEntry) { // a fifth of the first segment
		t.Errorf("Evict: got %+v, %d chunks left; want 56 chunks freed, two of them kept on disk, and 34 left",
			freed, after.Chunks)
	}
	if less := before.Used - after.Used; less < 54*length || max(less, freed.Bytes)-min(less,
		freed.Bytes) > 32<<10 { // whole blocks
		t.Errorf("Evict: got %d bytes fewer in use, %+v; want about the same number, and at least 54 chunks",
			before.Used-after.Used, freed)
	}
	for i := range 90 {
		want := i%3 == 0 || i < 6
		if ref, plain := data(i, length); has(t, c, ref, plain) != want {
			t.Errorf("chunk %d cached: got %v", i, !want)
		}
	}
}

// A damaged record does not move.
func TestDamageIsNotMoved(t *testing.T) {
	c := openSmall(t, t.TempDir(), Limits{Size: 4 << 20}, 100_000)
	for i := range 8 {
		c.Put(data(i, 20_000))
	}
	if err := c.Pin(chunk.ID{1}, "x", setOf(0, 2, 20_000)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.sealed[0].file.WriteAt([]byte("x"), 10_000); err != nil {
		t.Fatal(err)
	}
	c.Prune()
	if s := c.Stats(); s.Chunks != 1 || s.Damaged != 1 {
		t.Errorf("got %+v, want one chunk, and one damaged chunk", s)
	}
	if ref, plain := data(1, 20_000); !has(t, c, ref, plain) {
		t.Error("the undamaged chunk is missing")
	}
}

// A cache that was killed at any moment, also while pinned records move, has all pinned chunks and
// no wrong byte. The process that is killed is this program.
func TestKilled(t *testing.T) {
	const limit, segment, length = 2 << 20, 1 << 17, 10_000
	if dir := os.Getenv("LIGHTER_TEST_KILLED"); dir != "" {
		c := openSmall(t, dir, Limits{Size: limit}, segment)
		for i := 1000 * rand.IntN(1000); ; i++ {
			c.Put(data(1000+i, length))
			if i%500 == 0 {
				c.Prune()
			}
			if i%100 == 0 {
				c.Evict(setOf(1000+i-50, 1000+i-20, length))
			}
			if i%10 == 0 {
				_ = c.Pin(chunk.ID{2}, "y", setOf(1000+i-20, 1000+i, length))
			}
			if i%10 == 5 {
				_, _ = c.Unpin(chunk.ID{2})
			}
		}
	}
	dir := t.TempDir()
	c := openSmall(t, dir, Limits{Size: limit}, segment)
	if err := c.Pin(chunk.ID{1}, "x", setOf(0, 50, length)); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		c.Put(data(i, length))
		c.Put(data(i+100, length))
	}
	c.Close()
	rounds := 15
	if os.Getenv("LIGHTER_SOAK") != "" {
		rounds = 300
	}
	for round := range rounds {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestKilled$")
		cmd.Env = append(os.Environ(), "LIGHTER_TEST_KILLED="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(20+rand.IntN(100)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the process ended by itself")
		}
		c := openSmall(t, dir, Limits{Size: limit}, segment)
		if used := max(c.Stats().Used, diskUse(t, dir)); used > limit {
			t.Fatalf("got %d bytes used, want at most %d", used, limit)
		}
		if n := countRange(t, c, 0, 50, length); n != 50 {
			t.Fatalf("round %d: got %d pinned chunks, want 50", round, n)
		}
		if s := c.Stats(); s.Damaged > 0 {
			t.Errorf("round %d: got %+v, want no damaged chunks", round, s)
		}
		c.Close()
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(left) > 0 {
		t.Errorf("got unfinished files %v, want none", left)
	}
}
