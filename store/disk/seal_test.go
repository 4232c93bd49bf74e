package disk

import (
	"testing"
	"time"
)

// A segment that is being written is not sealed while a holder of slow may write to it.
func TestSealingWaitsForWriters(t *testing.T) {
	c := newSmall(t.TempDir(), Limits{Size: 16 << 20}, 1<<20)
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	c.start(c.takeOver)
	defer c.Close()
	<-c.loaded
	c.slow.Lock()
	if err := c.begin(&c.kept); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Evict(&Set{})
	}()
	for range 20 {
		time.Sleep(time.Millisecond)
		c.mu.RLock()
		sealed := c.kept == nil
		c.mu.RUnlock()
		if sealed {
			t.Error("Evict has sealed a segment that is being written")
			break
		}
	}
	c.slow.Unlock()
	<-ended
}
