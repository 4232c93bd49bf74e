package record

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/node/device"
)

// fakeDevice is a Device with one observer.
type fakeDevice struct{ recording device.Observer }

func (d *fakeDevice) Observe(o device.Observer) (stop func()) {
	d.recording = o
	return func() { d.recording = nil }
}

func (d *fakeDevice) read(offset, length int64) {
	if d.recording != nil {
		d.recording.Observe(device.Read{Offset: offset, Length: length})
	}
}

const kib = 1 << 10

var treeOne, treeTwo = chunk.Sum([]byte("one")), chunk.Sum([]byte("two"))

// recorded returns a recorder, and the traces that it passes on.
func recorded(on bool) (*Recorder, *[]trace.Trace) {
	var got []trace.Trace
	return New(on, func(t trace.Trace) { got = append(got, t) }), &got
}

func ranges(t trace.Trace) (all [][2]int64) {
	for _, r := range t.Reads {
		all = append(all, [2]int64{r.Offset / kib, r.Length / kib})
	}
	return all
}

func TestPagesAreRecordedOnceInTheOrderOfReading(t *testing.T) {
	r := newReadLog(treeOne, time.Now())
	for _, read := range [][2]int64{
		{400, 8}, {408, 4}, // continues the first read
		{0, 4},
		{400, 8},                       // was read before
		{396, 24},                      // extends what was read on both sides
		{100, 4}, {108, 4}, {100, 128}, // fills holes
		{1, 1}, {5, 8}, // not whole pages
	} {
		r.Observe(device.Read{Offset: read[0] * kib, Length: read[1] * kib})
	}
	want := [][2]int64{{400, 12}, {0, 4}, {396, 4}, {412, 8}, {100, 4}, {108, 4}, {104, 4}, {112, 116}, {4, 12}}
	if got := ranges(r.trace()); !reflect.DeepEqual(got, want) {
		t.Errorf("the trace has %v, want %v", got, want)
	}
}

// After any additions, the set has the same pages as a map.
func TestSpans(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var s spans
		seen := map[int64]bool{}
		for range 60 {
			from := random.Int64N(100)
			to := from + 1 + random.Int64N(12)
			var fresh, want []int64
			s.add(from, to, func(from, to int64) {
				for p := from; p < to; p++ {
					fresh = append(fresh, p)
				}
			})
			for p := from; p < to; p++ {
				if !seen[p] {
					want = append(want, p)
				}
				seen[p] = true
			}
			if !reflect.DeepEqual(fresh, want) {
				t.Fatalf("pages %d to %d: fresh %v, want %v", from, to, fresh, want)
			}
		}
		for i := 1; i < len(s); i++ {
			if s[i-1].to >= s[i].from {
				t.Fatalf("ranges touch: %v", s)
			}
		}
	}
}

// The trace of any reads is valid, so hubs accept it.
func TestWhatIsRecordedIsWellFormed(t *testing.T) {
	r := newReadLog(treeOne, time.Now().Add(-2*time.Hour)) // a longer time than fits into a note
	var readers sync.WaitGroup
	for i := range 8 {
		readers.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range 2 * trace.MaxReads / 8 { // more reads than fit into a recording
				r.Observe(device.Read{Offset: random.Int64N(1<<20) * 4 * kib,
					Length: (1 + random.Int64N(32)) * 4 * kib})
			}
		})
	}
	r.Observe(device.Read{Offset: -4096, Length: 4096})
	r.Observe(device.Read{Offset: 1 << 50, Length: 4096})
	r.Observe(device.Read{Offset: 0, Length: 1 << 40})
	r.Observe(device.Read{Offset: 0, Length: 0})
	readers.Wait()
	got := r.trace()
	if len(got.Reads) == 0 || len(got.Reads) > trace.MaxReads {
		t.Fatalf("the trace has %d reads, want 1 to %d", len(got.Reads), trace.MaxReads)
	}
	if back, err := trace.Decode(got.Encode(), treeOne, 1<<40); err != nil || len(back.Reads) == 0 {
		t.Errorf("decoded %d reads, error %v; want some, and no error", len(back.Reads), err)
	}
}

func TestNotingAllocatesNothing(t *testing.T) {
	r := newReadLog(treeOne, time.Now())
	if n := testing.AllocsPerRun(100, func() { r.Observe(device.Read{Offset: 4096, Length: 4096}) }); n > 0 {
		t.Errorf("a read costs %v allocations, want none", n)
	}
}

// A start is over when nothing was read for idleTime, and after maxTime at the latest. Later reads
// are not recorded.
func TestTheEndOfAStart(t *testing.T) {
	r, got := recorded(true)
	d := &fakeDevice{}
	r.BeginStart(treeOne, d)
	began := time.Now()
	d.read(0, minBytes)
	r.check(began)
	r.check(began.Add(idleTime - time.Second))
	if len(*got) > 0 {
		t.Fatal("the recording ended before idleTime")
	}
	d.read(minBytes, minBytes)
	r.check(began.Add(idleTime))
	r.check(began.Add(2*idleTime - time.Second))
	if len(*got) > 0 || r.Stats().Active != 1 {
		t.Fatal("the recording ended although something was read within idleTime")
	}
	r.check(began.Add(2 * idleTime))
	if d.recording != nil || len(*got) != 1 || (*got)[0].Tree != treeOne ||
		!reflect.DeepEqual(ranges((*got)[0]), [][2]int64{{0, 2 * minBytes / kib}}) {
		t.Errorf("recorded: %v, want one trace of both reads", *got)
	}
	r.BeginStart(treeTwo, d)
	for at := time.Duration(0); at < maxTime; at += time.Second {
		d.read(int64(at), minBytes)
		r.check(began.Add(at))
	}
	if len(*got) != 1 {
		t.Error("the recording ended before maxTime")
	}
	r.check(began.Add(maxTime))
	if s := r.Stats(); len(*got) != 2 || s.Recorded != 2 || s.Active != 0 {
		t.Errorf("got %d traces, figures %+v; want 2 traces, and no recording in progress", len(*got), s)
	}
}

// A recording with few bytes waits for a start. If no start follows, it has no result.
func TestFewBytesAreNoStart(t *testing.T) {
	r, got := recorded(true)
	d := &fakeDevice{}
	r.BeginStart(treeOne, d)
	began := time.Now()
	d.read(0, 4096) // containerd looks up a user, say
	r.check(began)
	r.check(began.Add(10 * time.Minute))
	if len(*got) > 0 || d.recording == nil {
		t.Fatal("the recording does not wait for a start")
	}
	d.read(1<<20, minBytes) // the container starts after all
	r.check(began.Add(10 * time.Minute))
	if len(*got) > 0 {
		t.Fatal("the recording ended at the beginning of the start")
	}
	r.check(began.Add(10*time.Minute + idleTime))
	if len(*got) != 1 {
		t.Fatal("the start was not recorded")
	}
	r.BeginStart(treeTwo, d)
	d.read(0, minBytes-4096)
	r.check(time.Now())
	r.check(time.Now().Add(startTimeout))
	if len(*got) != 1 || d.recording != nil || r.Stats().Skipped != 1 {
		t.Errorf("got %d traces, figures %+v; want 1 trace, and a second recording skipped", len(*got), r.Stats())
	}
}

// An unmount ends a recording. The recording has a result only if at least minBytes were read.
func TestUnmountingEndsAStart(t *testing.T) {
	r, got := recorded(true)
	d, other := &fakeDevice{}, &fakeDevice{}
	r.BeginStart(treeOne, d)
	r.BeginStart(treeTwo, other)
	d.read(0, minBytes)
	r.Unmounted(treeOne)
	r.Unmounted(treeTwo)
	if len(*got) != 1 || (*got)[0].Tree != treeOne || d.recording != nil || other.recording != nil {
		t.Errorf("got traces %v, want only that of tree one, and no recording in progress", *got)
	}
}

// A mount alone begins no recording, and a start begins none if the recorder is off. A second
// container does not restart a recording.
func TestWhatIsNotRecorded(t *testing.T) {
	r, _ := recorded(true)
	d := &fakeDevice{}
	r.Mounted(treeOne, d)
	if d.recording != nil {
		t.Error("a mount began a recording")
	}
	r.BeginStart(treeOne, d)
	first := d.recording
	r.BeginStart(treeOne, d)
	if first == nil || d.recording != first || r.Stats().Active != 1 {
		t.Error("a second container restarted the recording")
	}
	r, _ = recorded(false)
	d = &fakeDevice{}
	r.BeginStart(treeOne, d)
	if d.recording != nil {
		t.Error("a start is recorded although the recorder is off")
	}
}

// A new mount ends the recording of the previous mount. In the trace, times ascend even if notes
// were written out of order.
func TestAMountEndsTheOneBefore(t *testing.T) {
	r, got := recorded(true)
	before, after := &fakeDevice{}, &fakeDevice{}
	r.BeginStart(treeOne, before)
	before.recording.(*readLog).began = time.Now().Add(-time.Minute)
	before.read(0, minBytes)
	before.recording.(*readLog).began = time.Now().Add(-time.Second)
	before.read(8*minBytes, minBytes)
	r.Mounted(treeOne, after)
	if before.recording != nil || len(*got) != 1 || r.Stats().Active != 0 {
		t.Fatalf("got %d traces, figures %+v; want 1 trace, and no recording in progress", len(*got), r.Stats())
	}
	if _, err := trace.Decode((*got)[0].Encode(), treeOne, 1<<40); err != nil {
		t.Error(err)
	}
}

// There are at most maxAtOnce recordings. A new recording replaces a recording without reads.
func TestRecordingsAreBounded(t *testing.T) {
	r, _ := recorded(true)
	var devices []*fakeDevice
	mounted := func() *fakeDevice {
		d := &fakeDevice{}
		r.BeginStart(chunk.Sum(fmt.Append(nil, len(devices))), d)
		devices = append(devices, d)
		return d
	}
	for range maxAtOnce {
		mounted()
	}
	for _, d := range devices[1:] {
		d.read(0, minBytes)
	}
	r.check(time.Now())
	if d := mounted(); d.recording == nil || devices[0].recording != nil {
		t.Error("the recording without reads was not replaced")
	}
	devices[maxAtOnce].read(0, minBytes)
	r.check(time.Now())
	if d := mounted(); d.recording != nil || r.Stats().Active != maxAtOnce {
		t.Errorf("too many recordings: %+v", r.Stats())
	}
}

// hub is a hub that fails with the errors in fail, and then accepts traces.
type hub struct {
	fail     []error
	tried    int
	accepted []trace.Trace
}

func (h *hub) send(_ context.Context, t trace.Trace) error {
	h.tried++
	if len(h.fail) > 0 {
		err := h.fail[0]
		h.fail = h.fail[1:]
		return err
	}
	h.accepted = append(h.accepted, t)
	return nil
}

func reporter(h *hub, busy func() bool) *Reporter {
	r := NewReporter(h.send, busy, 0, slog.New(slog.DiscardHandler))
	r.pause = [maxTries - 1]time.Duration{}
	return r
}

func never() bool { return false }

// A trace is sent at most maxTries times, and only once if the hub refuses it.
func TestReportingTriesAFewTimes(t *testing.T) {
	gone := errors.New("it is gone")
	for _, test := range []struct {
		fail            []error
		tried, accepted int
	}{
		{nil, 1, 1},
		{[]error{gone, gone}, 3, 1},
		{[]error{gone, gone, gone}, 3, 0},
		{[]error{fmt.Errorf("%w: it knows no such tree", ErrRefused)}, 1, 0},
	} {
		h := &hub{fail: test.fail}
		r := reporter(h, never)
		r.report(t.Context(), trace.Trace{Tree: treeOne})
		if s := r.Stats(); h.tried != test.tried || len(h.accepted) != test.accepted ||
			s.Reported != int64(test.accepted) || s.Dropped != 1-int64(test.accepted) {
			t.Errorf("errors %v: tried %d times, the hub got %d, figures %+v; want %d and %d", test.fail, h.tried,
				len(h.accepted), s, test.tried, test.accepted)
		}
	}
}

// A trace is sent when the node's readers no longer use the link.
func TestReportingWaitsForReaders(t *testing.T) {
	asked := 0
	h := &hub{}
	r := reporter(h, func() bool { asked++; return asked < 3 })
	r.report(t.Context(), trace.Trace{Tree: treeOne})
	if asked != 3 || len(h.accepted) != 1 {
		t.Errorf("busy was called %d times, the hub got %d traces; want 3 and 1", asked, len(h.accepted))
	}
}

// Nodes that have recorded a start in the same second report it at different times.
func TestReportsAreSpread(t *testing.T) {
	var times []time.Duration
	for range 20 {
		r := NewReporter((&hub{}).send, never, time.Hour, slog.New(slog.DiscardHandler))
		r.Add(trace.Trace{Tree: treeOne})
		times = append(times, time.Until((<-r.queue).at))
	}
	slices.Sort(times)
	if first, last := times[0], times[len(times)-1]; last > time.Hour || last-first < 10*time.Minute {
		t.Errorf("the delays of reports are %v to %v, want them spread over an hour", first, last)
	}
	// Run waits until the time at which a trace is to be sent.
	h := &hub{}
	r := NewReporter(h.send, never, time.Hour, slog.New(slog.DiscardHandler))
	r.queue <- waiting{trace.Trace{Tree: treeOne}, time.Now().Add(time.Hour)}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if r.Run(ctx); h.tried != 0 {
		t.Error("a trace was sent before its time")
	}
}

// Traces that do not fit into the queue are dropped.
func TestReportsAreBounded(t *testing.T) {
	h := &hub{}
	r := reporter(h, never)
	for range maxQueued + 5 {
		r.Add(trace.Trace{Tree: treeOne})
	}
	if s := r.Stats(); s.Waiting != maxQueued || s.Dropped != 5 {
		t.Errorf("figures %+v, want %d waiting and 5 dropped", s, maxQueued)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	for r.Stats().Reported < maxQueued {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
}

func BenchmarkObserve(b *testing.B) {
	r := newReadLog(treeOne, time.Now())
	b.RunParallel(func(pb *testing.PB) {
		for i := int64(0); pb.Next(); i++ {
			if i%(trace.MaxReads/8) == 0 {
				r.noted.Store(0) // so that there is always room
			}
			r.Observe(device.Read{Offset: i % 1000 * 4096, Length: 4096})
		}
	})
}

func BenchmarkObserveAlone(b *testing.B) {
	r := newReadLog(treeOne, time.Now())
	for i := range b.N {
		if i%trace.MaxReads == 0 {
			r.noted.Store(0)
		}
		r.Observe(device.Read{Offset: int64(i%1000) * 4096, Length: 4096})
	}
}
