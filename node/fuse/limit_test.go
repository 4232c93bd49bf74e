package fuse

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestLimits plays random arrivals, ends and drops against the limits.
func TestLimits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	l := newLimits()
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
			switch begins, evicted := l.add(one); {
			case evicted != nil:
				t.Fatal("no room")
			case begins:
				inWork = append(inWork, one)
			default:
				waiting = append(waiting, one)
			}
		case len(waiting) > 0 && r.IntN(10) == 0:
			l.dequeue(take(&waiting))
		case len(inWork) > 0:
			begun(l.finish(take(&inWork)))
		}
		checkLimits(t, &l, files, inWork, waiting)
	}
	for len(inWork) > 0 {
		begun(l.finish(take(&inWork)))
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
	if len(l.active) != len(inWork) || l.queued != len(waiting) || l.bytes != bytes {
		t.Fatalf("%d in work, %d wait, %d bytes; want %d, %d, %d", len(l.active), l.queued, l.bytes, len(inWork), len(waiting), bytes)
	}
	if bytes > maxBytes+beyond || len(inWork) > maxActive+len(files)*alwaysPerDevice {
		t.Fatalf("%d reads of %d bytes in work", len(inWork), bytes)
	}
	for _, f := range files {
		if count[f] > maxPerDevice || count[f] != f.queue.active {
			t.Fatalf("%d reads of a device in work, it says %d", count[f], f.queue.active)
		}
		if f.queue.queued.Len() > 0 && count[f] < alwaysPerDevice {
			t.Fatalf("a device waits with %d reads in work", count[f])
		}
	}
}

// A device that waits gets its turn although another always has more to do.
func TestTurns(t *testing.T) {
	l := newLimits()
	greedy, modest := &file{}, &file{}
	enter := func(f *file) *read {
		r := &read{file: f, size: maxRead}
		l.add(r)
		return r
	}
	running := []*read{}
	for range maxBytes/maxRead + 50 {
		running = append(running, enter(greedy))
	}
	for range alwaysPerDevice {
		if r := enter(modest); modest.queue.queued.Len() > 0 {
			t.Fatalf("read %+v waits", r)
		}
	}
	last := enter(modest)
	for i := 0; modest.queue.queued.Len() > 0; i++ {
		if i > alwaysPerDevice+2 {
			t.Fatal("it is never its turn")
		}
		l.finish(running[i])
	}
	if modest.queue.active != alwaysPerDevice+1 {
		t.Errorf("%+v did not begin", last)
	}
}

// A device that is flooded with reads loses its own oldest ones; the others lose none, and each
// device that is flooded has the same share.
func TestFloodedDeviceLosesItsOwn(t *testing.T) {
	l := newLimits()
	modest, first, second := &file{}, &file{}, &file{}
	enter := func(f *file, n int) (evicted []*read) {
		for range n {
			if _, r := l.add(&read{file: f, size: 4096}); r != nil {
				evicted = append(evicted, r)
			}
		}
		return evicted
	}
	if evicted := enter(modest, maxPerDevice+100); evicted != nil {
		t.Fatalf("%d reads go although there is room", len(evicted))
	}
	enter(first, maxPerDevice)
	oldest := &read{file: first, size: 4096}
	l.add(oldest)
	if evicted := enter(first, maxUnanswered-2*maxPerDevice-100); len(evicted) != 1 || evicted[0] != oldest {
		t.Errorf("%d reads go for the last one, want the oldest", len(evicted))
	}
	for _, r := range enter(second, 2*maxUnanswered) {
		if r.file == modest {
			t.Fatal("a device with few reads lost one")
		}
	}
	a, b := first.queue.queued.Len(), second.queue.queued.Len()
	if modest.queue.queued.Len() != 100 || a+b+100+3*maxPerDevice != maxUnanswered || max(a, b)-min(a, b) > 1 {
		t.Errorf("%d, %d and %d reads wait", modest.queue.queued.Len(), a, b)
	}
}

// However many reads are called off, only a few are while the server's lock is held.
func TestReadsAreDroppedInBatches(t *testing.T) {
	l := newLimits()
	f := &file{}
	begin := time.Now()
	const n = 3*cancelBatch + 10
	for i := range maxPerDevice + n {
		l.add(&read{file: f, size: 4096, since: begin.Add(time.Duration(i) * time.Second)})
	}
	until := begin.Add((maxPerDevice + n - 6) * time.Second) // the last five are younger
	var sizes []int
	for {
		batch := l.dequeueOld(f, until, cancelBatch)
		if len(batch) == 0 {
			break
		}
		sizes = append(sizes, len(batch))
	}
	if !slices.Equal(sizes, []int{cancelBatch, cancelBatch, cancelBatch, 5}) || l.queued != 5 || f.queue.queued.Len() != 5 {
		t.Errorf("dropped %v; %d wait", sizes, l.queued)
	}
}
