package node

import (
	"os"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
)

const (
	// headroom is how much garbage may gather between two collections, in bytes. A
	// node has little in use and makes much garbage, a unit at a time: with Go's
	// own rule, as much as is in use, a fifth of a first read of a large file went
	// into collecting it.
	headroom = 64 << 20
	// leastGrowth and mostGrowth bound what follows from it, in percent of what is
	// in use: a large cache's index must not be walked through all the time, and a
	// new daemon has next to nothing in use.
	leastGrowth = 50
	mostGrowth  = 300
)

// boundGarbage has the garbage collector run whenever headroom is used up, for as
// long as the process lives. A rule in percent alone, as GOGC is, would have the
// garbage grow with all that is in use.
func boundGarbage() {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(live)
	debug.SetGCPercent(growth(live[0].Value.Uint64()))
	// What nobody refers to goes with the next collection, and then it is time to
	// look again.
	runtime.AddCleanup(new([16]byte), func(struct{}) { boundGarbage() }, struct{}{})
}

// growth returns by how many percent a heap may grow of which live bytes are in
// use.
func growth(live uint64) int {
	return int(min(max(100*headroom/max(live, 1), leastGrowth), mostGrowth))
}
