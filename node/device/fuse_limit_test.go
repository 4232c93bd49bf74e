package device

import (
	"math/rand/v2"
	"testing"
)

// TestLimits plays random arrivals, ends and drops against the limits.
func TestLimits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var l limits
	files := make([]*file, 20)
	for i := range files {
		files[i] = &file{}
	}
	var inWork, waiting []*read
	take := func(list *[]*read) *read {
		i := r.IntN(len(*list))
		one := (*list)[i]
		*list = append((*list)[:i], (*list)[i+1:]...)
		return one
	}
	begun := func(begin []*read) {
		for _, b := range begin {
			for i, w := range waiting {
				if w == b {
					waiting = append(waiting[:i], waiting[i+1:]...)
					break
				}
			}
			inWork = append(inWork, b)
		}
	}
	for step := range 50000 {
		switch arrive := r.IntN(100) < 60 && step < 40000; {
		case arrive:
			one := &read{file: files[r.IntN(1+r.IntN(len(files)))], size: 4096 << r.IntN(9)}
			switch begins, waits := l.enter(one); {
			case begins:
				inWork = append(inWork, one)
			case waits:
				waiting = append(waiting, one)
			default:
				t.Fatal("refused")
			}
		case len(waiting) > 0 && r.IntN(10) == 0:
			l.drop(take(&waiting))
		case len(inWork) > 0:
			begun(l.leave(take(&inWork)))
		}
		checkLimits(t, &l, files, inWork, waiting)
	}
	for len(inWork) > 0 {
		begun(l.leave(take(&inWork)))
		checkLimits(t, &l, files, inWork, waiting)
	}
	if len(waiting) != 0 {
		t.Errorf("%d reads wait although none is in work", len(waiting))
	}
}

func checkLimits(t *testing.T, l *limits, files []*file, inWork, waiting []*read) {
	t.Helper()
	bytes, beyond := int64(0), int64(0)
	count := map[*file]int{}
	for _, r := range inWork {
		bytes += int64(r.size)
		if count[r.file]++; count[r.file] <= alwaysPerDevice {
			beyond += maxRead
		}
	}
	if l.inWork != len(inWork) || l.waiting != len(waiting) || l.bytes != bytes {
		t.Fatalf("%d in work, %d wait, %d bytes; want %d, %d, %d", l.inWork, l.waiting, l.bytes, len(inWork), len(waiting), bytes)
	}
	if bytes > maxBytes+beyond || len(inWork) > maxInWork+len(files)*alwaysPerDevice {
		t.Fatalf("%d reads of %d bytes in work", len(inWork), bytes)
	}
	for _, f := range files {
		if count[f] > maxPerDevice || count[f] != f.queue.inWork {
			t.Fatalf("%d reads of a device in work, it says %d", count[f], f.queue.inWork)
		}
		if len(f.queue.waiting) > 0 && count[f] < alwaysPerDevice {
			t.Fatalf("a device waits with %d reads in work", count[f])
		}
	}
}

// A device that waits gets its turn although another always has more to do.
func TestTurns(t *testing.T) {
	var l limits
	greedy, modest := &file{}, &file{}
	enter := func(f *file) *read {
		r := &read{file: f, size: maxRead}
		l.enter(r)
		return r
	}
	running := []*read{}
	for range maxBytes/maxRead + 50 {
		running = append(running, enter(greedy))
	}
	for range alwaysPerDevice {
		if r := enter(modest); modest.queue.waiting != nil {
			t.Fatalf("read %+v waits", r)
		}
	}
	last := enter(modest)
	for i := 0; modest.queue.waiting != nil; i++ {
		if i > alwaysPerDevice+2 {
			t.Fatal("it is never its turn")
		}
		l.leave(running[i])
	}
	if modest.queue.inWork != alwaysPerDevice+1 {
		t.Errorf("%+v did not begin", last)
	}
}

func TestRefusedWhenTooManyWait(t *testing.T) {
	l := limits{waiting: maxWaiting}
	f := &file{queue: queue{inWork: maxPerDevice}}
	if begins, waits := l.enter(&read{file: f, size: 4096}); begins || waits {
		t.Error("taken")
	}
}
