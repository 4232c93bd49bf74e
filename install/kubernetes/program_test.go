package kubernetes

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The program is locked in memory with its libraries, but neither the heap nor stacks.
func TestResident(t *testing.T) {
	if err := Resident(); err != nil {
		t.Fatal(err)
	}
	program, err := os.Stat("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	var locked int64 // KiB
	_, line, _ := strings.Cut(string(status), "VmLck:")
	if _, err := fmt.Sscan(line, &locked); err != nil {
		t.Fatal(err)
	}
	if size := program.Size() >> 10; locked < size/4 || locked > size+8<<10 {
		t.Errorf("%d KiB are locked, want those of the program, which has %d", locked, size)
	}
}
