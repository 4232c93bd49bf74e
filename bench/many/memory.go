package many

import (
	"os"
	"strconv"
	"strings"
)

// nodeMemory is about what a node takes that touches so many bytes of a device: its
// cache lies in memory.
func nodeMemory(touched int64) int64 { return 24<<20 + 2*touched }

// memoryLeft is what the machine can give without swapping, in bytes; 0: it is not
// known.
func memoryLeft() int {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, _ := strconv.Atoi(strings.Fields(value)[0]) // 0: not known
			return n << 10
		}
	}
	return 0
}
