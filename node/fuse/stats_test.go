package fuse

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"lighter/format/chunk"
	"lighter/test/testkit/eventually"
)

// A time that equals a bucket's bound is in this bucket. The bounds cover the longest read.
func TestLatencyBuckets(t *testing.T) {
	for bucket := range LatencyBuckets {
		bound := LatencyBound(bucket)
		if bucketOf(bound) != bucket || bucketOf(bound+1) != bucket+1 {
			t.Errorf("%v is in bucket %d and %v in %d, want %d and %d",
				bound, bucketOf(bound), bound+1, bucketOf(bound+1), bucket, bucket+1)
		}
	}
	if bucketOf(0) != 0 || bucketOf(time.Hour) != LatencyBuckets {
		t.Errorf("0 is in bucket %d, an hour in %d; want 0 and %d", bucketOf(0), bucketOf(time.Hour), LatencyBuckets)
	}
	if last := LatencyBound(LatencyBuckets - 1); last < readDeadline+readGrace {
		t.Errorf("the last bound is %v, want at least %v, which a read may take", last, readDeadline+readGrace)
	}
}

func TestLatencyQuantiles(t *testing.T) {
	var l latency
	if q := l.get().Quantile(0.5); q != 0 {
		t.Errorf("the median of no times is %v, want 0", q)
	}
	for i := range 1000 {
		l.add(time.Duration(i+1) * time.Millisecond)
	}
	got := l.get()
	const ms = time.Millisecond
	for q, want := range map[float64]time.Duration{0.5: 500 * ms, 0.99: 990 * ms, 1: time.Second} {
		if is := got.Quantile(q); is < want*9/10 || is > want*11/10 {
			t.Errorf("quantile %v is %v, want about %v", q, is, want)
		}
	}
	if got.Count() != 1000 || got.Max != time.Second || got.Sum != 500500*time.Millisecond {
		t.Errorf("%d times, maximum %v, sum %v; want 1000, 1s, 500.5s", got.Count(), got.Max, got.Sum)
	}
}

// remote is a Reader of a device. Its bytes before the offset local are on this machine, the others
// are not. ReadAt returns fail if that is set.
type remote struct {
	local int64
	fail  error
}

func (r *remote) ReadAt(ctx context.Context, dst []byte, off int64) (missed int64, err error) {
	if r.fail != nil {
		return 0, r.fail
	}
	missed = min(max(off+int64(len(dst))-r.local, 0), int64(len(dst)))
	_, err = ready{}.ReadAt(ctx, dst, off)
	return missed, err
}

// The server counts each successful read once: as cached, or as fetched. It counts failed reads by
// reason. A device's own figures count its reads, too.
func TestReadsAreCounted(t *testing.T) {
	server, k, _ := connect(t, resending)
	reader := &remote{local: 40 << 10}
	id := k.add(server, "a", reader)
	const size, reads = 16 << 10, testSize / (16 << 10)
	for offset := uint64(0); offset < testSize; offset += size {
		k.ask(opRead, nodeID(id), bodyOf(gofuse.ReadIn{Offset: offset, Size: size}))
	}
	var st ServerStats
	eventually.Holds(t, "counting", func() bool { // a read is counted after its answer was sent
		st = server.Stats()
		return st.Cached.Count()+st.Fetched.Count() == reads &&
			server.DeviceStats(id).Waited.Fetched == st.Fetched.Count()
	})
	if st.Cached.Count() != 2 || st.CachedBytes != 40<<10 || st.FetchedBytes != testSize-40<<10 {
		t.Errorf("%d cached reads, %d cached bytes, %d fetched bytes; want 2, %d, %d",
			st.Cached.Count(), st.CachedBytes, st.FetchedBytes, 40<<10, testSize-40<<10)
	}
	if w := server.DeviceStats(id).Waited; w.Total <= 0 || w.P50 > w.P99 || w.P99 > w.Max {
		t.Errorf("the device's waits are %+v, want a total above 0 and P50 <= P99 <= Max", w)
	}
	if st := server.DeviceStats(testID("other")); st != (DeviceStats{}) {
		t.Errorf("figures of an unknown device: %+v, want zeros", st)
	}
	reader.fail = &chunk.InvalidError{What: "unit", Err: errors.New("lies")}
	k.read(1, id, 0, 4096)
	k.read(1<<63|3, id, 0, 4096) // a resent request
	for range 2 {
		k.next()
	}
	eventually.Holds(t, "counting two failed reads, one of them resent", func() bool {
		st = server.Stats()
		return st.Failed[Reasons[reasonInvalid]] == 2 && st.Resent == 1 && server.DeviceStats(id).Failed == 2
	})
}

// The server's figures have the unanswered reads: active and queued ones.
func TestUnansweredReadsAreCounted(t *testing.T) {
	server, k, _ := connect(t, resending)
	r := newStuck()
	id := k.add(server, "a", r)
	for unique := uint64(2); unique < 2*(maxPerDevice+10); unique += 2 {
		k.read(unique, id, 0, small)
	}
	k.sync()
	st := server.Stats()
	if st.Active != maxPerDevice || st.Queued != 9 || st.ActiveBytes != maxPerDevice*small || st.Oldest <= 0 {
		t.Errorf("stats %+v, want %d active and 9 queued reads", st, maxPerDevice)
	}
	close(r.release)
}

func TestReasons(t *testing.T) {
	for want, err := range map[reason]error{
		reasonLate: errTooLate, reasonOverload: errOverloaded,
		reasonNotFound: chunk.ErrNotFound, reasonOrigin: errors.New("connection refused"),
		reasonInvalid: &chunk.InvalidError{What: "unit", Err: errors.New("wrong")},
		reasonIndex:   fmt.Errorf("%w: %w", ErrIndex, &chunk.InvalidError{What: "page", Err: errors.New("wrong")}),
	} {
		if got := reasonOf(fmt.Errorf("read: %w", err)); got != want {
			t.Errorf("reason of %v: %s, want %s", err, Reasons[got], Reasons[want])
		}
	}
}
