package disk

import (
	"testing"

	"lighter/store"
	"lighter/test/testkit/cachetest"
)

func TestConformance(t *testing.T) {
	cachetest.Run(t, func(t *testing.T) store.Cache { return open(t, t.TempDir(), MinLimit) })
}

func TestConformanceAfterReload(t *testing.T) {
	cachetest.Run(t, func(t *testing.T) store.Cache {
		dir := t.TempDir()
		c := open(t, dir, MinLimit)
		c.Put(data(1, 100))
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		return open(t, dir, MinLimit)
	})
}
