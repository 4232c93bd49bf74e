package memory

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"
)

// growth allows garbageLimit bytes of garbage, within minGrowth and maxGrowth.
func TestGrowth(t *testing.T) {
	for live, want := range map[uint64]int{0: 300, 10 << 20: 300, 32 << 20: 200, 64 << 20: 100, 1 << 30: 50} {
		if got := growth(live); got != want {
			t.Errorf("a heap of %d bytes: got growth %d %%, want %d", live, got, want)
		}
	}
}

// After each collection, the percentage is set for the memory that is then in use.
func TestLimitGarbage(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	t.Setenv("GOGC", "") // as if it were not set
	LimitGarbage()
	use := func(live []byte, want func(percent int) bool) {
		t.Helper()
		var percent int
		for range 1000 {
			runtime.GC()
			runtime.Gosched()
			if percent = current(); want(percent) {
				runtime.KeepAlive(live)
				return
			}
		}
		t.Errorf("%d MiB in use: got growth %d %%, want the bound", len(live)>>20, percent)
	}
	use(make([]byte, 200<<20), func(percent int) bool { return percent == minGrowth })
	use(nil, func(percent int) bool { return percent == maxGrowth })
}

// current returns the collector's percentage.
func current() int {
	percent := debug.SetGCPercent(-1)
	debug.SetGCPercent(percent)
	return percent
}

// Available memory below minAvailable, or below 1/minPart of all memory, is a shortage.
func TestCheckMemory(t *testing.T) {
	for text, short := range map[string]bool{
		"MemTotal:       16000000 kB\nMemFree:  10 kB\nMemAvailable:   1000000 kB\n": false,
		"MemTotal:       16000000 kB\nMemAvailable:   300000 kB\n":                   true,
		"MemTotal:       1000000 kB\nMemAvailable:   140000 kB\n":                    false,
		"MemTotal:       1000000 kB\nMemAvailable:   130000 kB\n":                    true,
		"something else": false,
	} {
		file := filepath.Join(t.TempDir(), "meminfo")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkMemory(file); (err != nil) != short {
			t.Errorf("%q: got %v, want short %t", text, err, short)
		}
	}
	if err := checkMemory(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Errorf("no file: got %v, want none", err)
	}
}
