package node

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
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

const (
	// leastMemory is what has to be available on the machine for anything to be
	// fetched that nobody waits for, or a fortieth of its memory if that is more.
	leastMemory = 128 << 20
	leastPart   = 40
	// shortTime is for how long an answer holds.
	shortTime = time.Second
)

// shortage remembers whether the machine was short of something a moment ago.
type shortage struct {
	mu    sync.Mutex
	asked time.Time
	why   error
}

// short says why nothing should be fetched now that nobody waits for.
func (n *Node) short() error {
	s := &n.shortage
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.asked) >= shortTime {
		s.asked = time.Now()
		s.why = errors.Join(memoryShort("/proc/meminfo"), n.cache.Short())
	}
	return s.why
}

// memoryShort says whether little memory is available. What cannot be found out is
// no reason to wait.
func memoryShort(meminfo string) error {
	file, err := os.Open(meminfo)
	if err != nil {
		return nil
	}
	defer file.Close()
	total, available := uint64(0), ^uint64(0)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var kB uint64
		name, value, _ := strings.Cut(lines.Text(), ":")
		if _, err := fmt.Sscan(value, &kB); err != nil {
			continue
		}
		switch name {
		case "MemTotal":
			total = kB << 10
		case "MemAvailable":
			available = kB << 10
		}
	}
	if least := max(leastMemory, total/leastPart); available < least {
		return fmt.Errorf("of the machine's memory only %s are available", humanize.IBytes(available))
	}
	return nil
}
