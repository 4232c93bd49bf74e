package store

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// Shares that stream at the same time get equal parts of the link. A fault of another share waits
// no longer behind all these streams than behind one.
func TestManyStreamsTakeTurns(t *testing.T) {
	const shares, each, large, small = 64, 10, 200_000, 40_000
	unit, refs := encode(t, noise(large/2, 1), noise(large/2, 2))
	wanted, faults := encode(t, noise(small, 3))
	synctest.Test(t, func(t *testing.T) {
		w := &path{rate: 100e6 / 8, rtt: 10 * time.Millisecond, asked: map[uint32]int{}}
		w.answer = func(u chunk.Unit) []byte {
			if u.N >= shares*each {
				return wanted
			}
			return unit
		}
		u := NewFetcher(w, noCache{})
		begun := time.Now()
		var streams, reads sync.WaitGroup
		for i := range shares {
			s := u.Share()
			streams.Go(func() {
				for n := range each {
					wait, err := s.Stream(t.Context(), at(refs[0], i*each+n), large)
					if err != nil {
						t.Error(err)
						return
					}
					streams.Go(func() {
						if _, err := wait(t.Context()); err != nil {
							t.Error(err)
						}
						round := w.takes(large * shares)
						if took, ideal := time.Since(begun), round*time.Duration(n+1); took > ideal+round/2 {
							t.Errorf("unit %d of share %d: got it after %v, want %v", n, i, took, ideal)
						}
					})
				}
			})
		}
		ended, other := make(chan struct{}), u.Share()
		reads.Go(func() {
			for n := shares * each; ; n++ {
				select {
				case <-ended:
					return
				case <-time.After(300 * time.Millisecond):
				}
				asked := time.Now()
				if err := other.Read(t.Context(), at(faults[0], n), 0, make([]byte, 10), nil); err != nil {
					t.Error(err)
				}
				if late := time.Since(asked) - w.rtt - w.takes(small); late > w.takes(large+minWindow)+w.rtt/2 {
					t.Errorf("a fault was delayed by %v behind %d streams, want at most %v",
						late, shares, w.takes(large+minWindow)+w.rtt/2)
				}
			}
		})
		streams.Wait()
		close(ended)
		reads.Wait()
		if used := w.used(0); used < 0.97 {
			t.Errorf("got %.2f of the link used, want at least 0.97", used)
		}
		if u.link.inStartup() {
			t.Error("the link is in startup in the end")
		}
		if len(u.link.queue) > 0 || u.link.streaming != 0 {
			t.Errorf("in the end: got %d waiting shares, %d bytes of streams, want none", len(u.link.queue),
				u.link.streaming)
		}
	})
}

// A stream that hangs delays another stream for seconds, not for ever.
func TestStreamBesideOneThatHangs(t *testing.T) {
	unit, refs := encode(t, noise(100_000, 1), noise(100_000, 2))
	synctest.Test(t, func(t *testing.T) {
		src := &source{unit: func(ctx context.Context, u chunk.Unit) ([]byte, error) {
			if u.N < 1000 {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return unit, nil
		}}
		u := NewFetcher(src, noCache{})
		stuck, end := context.WithCancel(t.Context())
		var work sync.WaitGroup
		s := u.Share()
		work.Go(func() {
			for n := 0; ; n++ {
				wait, err := s.Stream(stuck, at(refs[0], n), maxWindow)
				if err != nil {
					return
				}
				work.Go(func() { _, _ = wait(stuck) })
			}
		})
		time.Sleep(time.Minute)
		begun, other := time.Now(), u.Share()
		for n := range 3 {
			wait, err := other.Stream(t.Context(), at(refs[0], 1000+n), 200_000)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(begun); took > 3*maxIdleWait {
			t.Errorf("three units took %v beside a stream that hangs, want at most %v", took, 3*maxIdleWait)
		}
		end()
		work.Wait()
		u.Wait()
	})
}
