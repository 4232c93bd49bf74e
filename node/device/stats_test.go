package device

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"lighter/format/chunk"
)

func TestLatencyBuckets(t *testing.T) {
	for bucket := range LatencyBuckets {
		bound := LatencyBound(bucket)
		if bucketOf(bound) != bucket || bucketOf(bound+1) != bucket+1 {
			t.Errorf("%v is in bucket %d and %v in %d, want %d and %d", bound, bucketOf(bound), bound+1, bucketOf(bound+1), bucket, bucket+1)
		}
	}
	if bucketOf(0) != 0 || bucketOf(time.Hour) != LatencyBuckets {
		t.Errorf("0 is in bucket %d, an hour in %d", bucketOf(0), bucketOf(time.Hour))
	}
	if last := LatencyBound(LatencyBuckets - 1); last < readDeadline+readGrace {
		t.Errorf("the last bound is %v: reads may take longer", last)
	}
}

func TestLatencyQuantiles(t *testing.T) {
	var l latency
	if q := l.get().Quantile(0.5); q != 0 {
		t.Errorf("of nothing, half came within %v", q)
	}
	for i := range 1000 {
		l.add(time.Duration(i+1) * time.Millisecond)
	}
	got := l.get()
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 1: time.Second} {
		if is := got.Quantile(q); is < want*9/10 || is > want*11/10 {
			t.Errorf("quantile %v is %v, want about %v", q, is, want)
		}
	}
	if got.Count() != 1000 || got.Max != time.Second || got.Sum != 500500*time.Millisecond {
		t.Errorf("%d answers, at most %v, %v in all", got.Count(), got.Max, got.Sum)
	}
}

// Each answered read is counted once, by where its bytes came from, with the
// device and with the server.
func TestReadsAreCounted(t *testing.T) {
	d, shelf, image := build(t)
	server, k, _ := connect(t, resending)
	id := testID("a")
	size := int64(len(image)) / pageSize * pageSize
	if _, err := server.Add(id, size, d); err != nil {
		t.Fatal(err)
	}
	reads := 0
	for offset := int64(0); offset < size; offset += 16 << 10 {
		k.ask(opRead, nodeID(id), bodyOf(fuse.ReadIn{Offset: uint64(offset), Size: 16 << 10}))
		reads++
	}
	var st ServerStats
	eventually(t, "counting", func() bool { // after the answer
		st = server.Stats()
		return st.Here.Count()+st.Fetched.Count() == int64(reads) && d.Stats().Waited.Fetched == st.Fetched.Count()
	})
	if st.Here.Count() == 0 || st.Fetched.Count() == 0 || st.HereBytes+st.FetchedBytes != size || st.FetchedBytes != d.Stats().Missed {
		t.Errorf("%d reads of %d bytes, counted as %d and %d reads of %d and %d bytes; the device says %+v",
			reads, size, st.Here.Count(), st.Fetched.Count(), st.HereBytes, st.FetchedBytes, d.Stats())
	}
	if w := d.Stats().Waited; w.Total <= 0 || w.P50 > w.P99 || w.P99 > w.Max {
		t.Errorf("the device says %+v", w)
	}
	clear(shelf.here)
	shelf.fail = &chunk.InvalidError{What: "unit", Err: errors.New("lies")}
	k.read(1, id, 0, 4096)
	k.read(1<<63|3, id, 0, 4096) // sent again
	for range 2 {
		k.next()
	}
	eventually(t, "counting two wrong units, one of them resent", func() bool {
		st = server.Stats()
		return st.Failed[reasonInvalid] == 2 && st.Resent == 1 && d.Stats().Failed == 2
	})
}

func TestUnansweredReadsAreSeen(t *testing.T) {
	server, k, _ := connect(t, resending)
	r := newStuck()
	id := k.add(server, "a", r)
	for unique := uint64(2); unique < 2*(maxPerDevice+10); unique += 2 {
		k.read(unique, id, 0, small)
	}
	k.sync()
	if st := server.Stats(); st.InWork != maxPerDevice || st.Waiting != 9 || st.InWorkBytes != maxPerDevice*small || st.Oldest <= 0 {
		t.Errorf("%+v", st)
	}
	close(r.release)
}

func TestReasons(t *testing.T) {
	for want, err := range map[string]error{
		reasonLate: errTooLate, reasonOverload: errOverloaded, reasonNotFound: chunk.ErrNotFound, reasonOrigin: errors.New("connection refused"),
		reasonInvalid: &chunk.InvalidError{What: "unit", Err: errors.New("wrong")},
		reasonIndex:   fmt.Errorf("%w: %w", errIndex, &chunk.InvalidError{What: "page", Err: errors.New("wrong")}),
	} {
		if got := reasonOf(fmt.Errorf("read: %w", err)); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}
