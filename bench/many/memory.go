package many

import (
	"os"
	"strconv"
	"strings"
)

// nodeMemory estimates the memory in bytes of a simulated node that reads touched bytes of a
// device. The node's cache is in memory.
func nodeMemory(touched int64) int64 { return 24<<20 + 2*touched }

// memoryLeft returns the available memory of the machine without swapping, in bytes; 0 if unknown.
func memoryLeft() int {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, _ := strconv.Atoi(strings.Fields(value)[0]) // 0: unknown
			return n << 10
		}
	}
	return 0
}
