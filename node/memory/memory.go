// Package memory keeps a node's heap small, and stops background work when the machine is short of
// memory. It makes the node one of the last processes that the kernel kills.
package memory

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
)

const (
	// garbageLimit is how much garbage may gather between two garbage collections, in bytes. A node
	// has little memory in use and produces much garbage: each unit that it decodes. Go's default
	// allows as much garbage as there is memory in use. With this default, garbage collections took
	// a fifth of the time of a first read of a large file.
	garbageLimit = 64 << 20
	// minGrowth and maxGrowth bound how much the heap may grow between two garbage collections, in
	// percent of the memory in use. minGrowth limits how often the index of a large cache is
	// scanned. maxGrowth matters for a new daemon, which has hardly any memory in use.
	minGrowth = 50
	maxGrowth = 300
	// Background fetches need at least minAvailable bytes of available memory, and at least
	// 1/minPart of the machine's memory.
	minAvailable = 128 << 20
	minPart      = 40
	// checkInterval is how long the result of a check is used.
	checkInterval = time.Second
	// oomScore makes the node one of the last processes that the kernel kills, because all
	// containers depend on the node. The keeper is killed even later.
	oomScore = -999
)

// LimitGarbage makes the garbage collector run whenever about garbageLimit bytes of garbage have
// gathered, as long as the process lives. With a fixed percentage (GOGC), the garbage would grow
// with the memory in use. If the environment sets GOGC, LimitGarbage does nothing.
func LimitGarbage() {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	debug.SetGCPercent(growth(live[0].Value.Uint64()))
	// The next collection finds this unreachable object and calls the cleanup, which sets the limit
	// again.
	runtime.AddCleanup(new([16]byte), func(struct{}) { LimitGarbage() }, struct{}{})
}

// growth returns by how many percent a heap with live bytes in use may grow.
func growth(live uint64) int {
	return int(min(max(100*garbageLimit/max(live, 1), minGrowth), maxGrowth))
}

// Shortage checks whether the machine is short of memory or disk. It is safe for concurrent use.
type Shortage struct {
	disk func() error

	mu      sync.Mutex // guards what follows
	checked time.Time
	err     error
}

// NewShortage returns a check of the machine's memory and of a disk. disk returns why the disk is
// short, or nil.
func NewShortage(disk func() error) *Shortage { return &Shortage{disk: disk} }

// Check returns why nothing should be fetched in the background now, or nil. It examines the
// machine at most once in checkInterval.
func (s *Shortage) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.checked) >= checkInterval {
		s.checked = time.Now()
		s.err = errors.Join(checkMemory("/proc/meminfo"), s.disk())
	}
	return s.err
}

// checkMemory fails if little memory is available. It succeeds if meminfo does not say how much is
// available, or cannot be read.
func checkMemory(meminfo string) error {
	text, err := os.ReadFile(meminfo)
	if err != nil {
		return nil
	}
	values := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		var name string
		var kB uint64
		if _, err := fmt.Sscan(line, &name, &kB); err == nil {
			values[name] = kB << 10
		}
	}
	available, known := values["MemAvailable:"]
	if known && available < max(minAvailable, values["MemTotal:"]/minPart) {
		return fmt.Errorf("of the machine's memory only %s are available", humanize.IBytes(available))
	}
	return nil
}

// ProtectProcess makes this process one of the last that the kernel kills when memory is short,
// unless the service manager has set an OOM score.
func ProtectProcess(log *slog.Logger) {
	const path = "/proc/self/oom_score_adj"
	text, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(text)) == "0" {
		err = os.WriteFile(path, []byte(strconv.Itoa(oomScore)), 0)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Info("cannot protect the node from the OOM killer", "err", err)
	}
}
