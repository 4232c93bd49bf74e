package record

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
)

// A requested start is recorded even if the recorder is off, and only the caller of RecordNext gets
// the trace.
func TestTheNextStart(t *testing.T) {
	r, got := recorded(false)
	next, err := r.RecordNext(treeOne)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.RecordNext(treeOne); !errors.Is(err, errRequested) {
		t.Errorf("a second request: got %v, want %v", err, errRequested)
	}
	d, other := &fakeDevice{}, &fakeDevice{}
	r.BeginStart(treeTwo, other)
	r.Mounted(treeOne, d)
	d.read(0, 4096)
	now := time.Now()
	r.check(now)
	if next.Seen() != 1 || other.recording != nil {
		t.Errorf("%d reads, want 1, and no recording of another tree", next.Seen())
	}
	r.check(now.Add(idleTime))
	select {
	case <-next.Done():
	default:
		t.Fatal("the recording is not done after idleTime")
	}
	if len(next.Trace().Reads) != 1 || len(*got) > 0 || d.recording != nil {
		t.Errorf("the caller of RecordNext got %v, want one read; the recorder passed on %v, want nothing",
			next.Trace(), *got)
	}
	next.End()
	if next, err = r.RecordNext(treeOne); err != nil {
		t.Fatal(err)
	}
	r.Mounted(treeOne, d)
	next.End()
	if d.recording != nil || r.Stats().Active != 0 {
		t.Error("a recording continues after End")
	}
}

// A requested recording begins even if maxAtOnce others are in progress. It is not replaced, and
// waits for a start without limit.
func TestTheNextStartIsWaitedFor(t *testing.T) {
	r, _ := recorded(true)
	for i := range maxAtOnce {
		d := &fakeDevice{}
		r.BeginStart(chunk.Sum(fmt.Append(nil, i)), d)
		d.read(0, minBytes)
	}
	now := time.Now()
	r.check(now)
	next, err := r.RecordNext(treeOne)
	if err != nil {
		t.Fatal(err)
	}
	d := &fakeDevice{}
	r.Mounted(treeOne, d)
	if d.recording == nil || r.Stats().Active != maxAtOnce+1 {
		t.Fatalf("the requested recording was not made: %+v", r.Stats())
	}
	r.BeginStart(treeTwo, &fakeDevice{})
	if d.recording == nil {
		t.Error("the requested recording was replaced")
	}
	r.check(now.Add(2 * startTimeout))
	if d.recording == nil {
		t.Error("the requested recording has ended before a start")
	}
	// End of an earlier request does not end a later recording.
	d.read(0, minBytes)
	r.check(now.Add(3 * startTimeout))
	r.check(now.Add(3*startTimeout + idleTime))
	<-next.Done()
	other, err := r.RecordNext(treeOne)
	if err != nil {
		t.Fatal(err)
	}
	next.End()
	if r.Mounted(treeOne, d); d.recording == nil {
		t.Error("End of an earlier request ended the recording")
	}
	other.End()
}

// A trace whose sending is interrupted by the node's end does not count as dropped.
func TestReportingEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	tried := 0
	r := reporter(nil, never)
	r.send = func(context.Context, trace.Trace) error {
		tried++
		cancel()
		return errors.New("it is gone")
	}
	r.report(ctx, trace.Trace{Tree: treeOne})
	if s := r.Stats(); tried != 1 || s != (ReportStats{}) {
		t.Errorf("tried %d times, want once; figures %+v, want zeros", tried, s)
	}
}
