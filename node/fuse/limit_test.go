package fuse

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The active reads stay within the limits, in whatever order reads arrive, end and are removed.
func TestLimits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	l := newLimits()
	files := make([]*file, 20)
	for i := range files {
		files[i] = &file{}
	}
	var active, queued []*read
	take := func(list *[]*read) *read { // removes a random read from a list
		i := r.IntN(len(*list))
		taken := (*list)[i]
		*list = append((*list)[:i], (*list)[i+1:]...)
		return taken
	}
	activated := func(reads []*read) { // moves reads from queued to active
		for _, now := range reads {
			for i, before := range queued {
				if before == now {
					queued = append(queued[:i], queued[i+1:]...)
					break
				}
			}
			active = append(active, now)
		}
	}
	for step := range 50000 {
		switch arrive := r.IntN(100) < 60 && step < 40000; {
		case arrive:
			added := &read{file: files[r.IntN(1+r.IntN(len(files)))], size: 4096 << r.IntN(9)}
			switch isActive, evicted := l.add(added); {
			case evicted != nil:
				t.Fatal("a read was evicted although there is room")
			case isActive:
				active = append(active, added)
			default:
				queued = append(queued, added)
			}
		case len(queued) > 0 && r.IntN(10) == 0:
			l.dequeue(take(&queued))
		case len(active) > 0:
			activated(l.finish(take(&active)))
		}
		checkLimits(t, &l, files, active, queued)
	}
	for len(active) > 0 {
		activated(l.finish(take(&active)))
		checkLimits(t, &l, files, active, queued)
	}
	if len(queued) != 0 {
		t.Errorf("%d reads are queued although none is active, want 0", len(queued))
	}
}

func checkLimits(t *testing.T, l *limits, files []*file, active, queued []*read) {
	t.Helper()
	bytes, beyond := int64(0), int64(0) // of active reads; allowed beyond maxBytes, for alwaysPerDevice
	count := map[*file]int{}
	for _, r := range active {
		bytes += int64(r.size)
		if count[r.file]++; count[r.file] <= alwaysPerDevice {
			beyond += maxRead
		}
	}
	if len(l.active) != len(active) || l.queued != len(queued) || l.bytes != bytes {
		t.Fatalf("%d active, %d queued, %d bytes; want %d, %d, %d",
			len(l.active), l.queued, l.bytes, len(active), len(queued), bytes)
	}
	if bytes > maxBytes+beyond || len(active) > maxActive+len(files)*alwaysPerDevice {
		t.Fatalf("%d reads of %d bytes are active, want at most %d of %d bytes", len(active), bytes,
			maxActive+len(files)*alwaysPerDevice, maxBytes+beyond)
	}
	for _, f := range files {
		if count[f] > maxPerDevice || count[f] != f.queue.active {
			t.Fatalf("%d reads of a device are active and its queue counts %d, want the same number and at most %d",
				count[f], f.queue.active, maxPerDevice)
		}
		if f.queue.queued.Len() > 0 && count[f] < alwaysPerDevice {
			t.Fatalf("a device with queued reads has %d active ones, want at least %d", count[f], alwaysPerDevice)
		}
	}
}

// A queued read of a device becomes active although another device always has more queued reads.
func TestDevicesTakeTurns(t *testing.T) {
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
			t.Fatalf("read %+v is queued, want it active", r)
		}
	}
	last := enter(modest)
	for i := 0; modest.queue.queued.Len() > 0; i++ {
		if i > alwaysPerDevice+2 {
			t.Fatalf("the read of the modest device is still queued after %d reads have ended", i)
		}
		l.finish(running[i])
	}
	if modest.queue.active != alwaysPerDevice+1 {
		t.Errorf("%d reads of the modest device are active, want %d; the last read is %+v",
			modest.queue.active, alwaysPerDevice+1, last)
	}
}

// Of a device that is flooded with reads, the oldest queued reads are evicted. Other devices lose
// no read. Two flooded devices get queues of equal length.
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
		t.Fatalf("%d reads were evicted although there is room", len(evicted))
	}
	enter(first, maxPerDevice)
	oldest := &read{file: first, size: 4096}
	l.add(oldest)
	if evicted := enter(first, maxUnanswered-2*maxPerDevice-100); len(evicted) != 1 || evicted[0] != oldest {
		t.Errorf("%d reads were evicted when one too many arrived, want only the oldest one", len(evicted))
	}
	for _, r := range enter(second, 2*maxUnanswered) {
		if r.file == modest {
			t.Fatal("a device with few reads lost one of them")
		}
	}
	a, b := first.queue.queued.Len(), second.queue.queued.Len()
	if modest.queue.queued.Len() != 100 || a+b+100+3*maxPerDevice != maxUnanswered || max(a, b)-min(a, b) > 1 {
		t.Errorf("%d, %d and %d reads are queued, want 100 and two equal shares of %d",
			modest.queue.queued.Len(), a, b, maxUnanswered-100-3*maxPerDevice)
	}
}

// dequeueOld removes the reads that arrived until a time, and no newer ones.
func TestOldReadsAreRemoved(t *testing.T) {
	l := newLimits()
	f := &file{}
	begin := time.Now()
	const n = 500
	for i := range maxPerDevice + n {
		l.add(&read{file: f, size: 4096, since: begin.Add(time.Duration(i) * time.Second)})
	}
	until := begin.Add((maxPerDevice + n - 6) * time.Second) // the last five reads are newer
	if removed := l.dequeueOld(f, until); len(removed) != n-5 || l.queued != 5 || f.queue.queued.Len() != 5 {
		t.Errorf("%d reads were removed, %d are queued; want %d and 5", len(removed), l.queued, n-5)
	}
}
