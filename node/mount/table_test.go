package mount

import (
	"fmt"
	"strings"
	"testing"
)

// mountPoints lists the mounts below a directory, also below the root directory of the system.
func TestMountPointsSeesTheRoot(t *testing.T) {
	mounts, err := mountPoints("/")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := mounts["/proc"]; !ok {
		t.Errorf("/proc is not among %d mounts", len(mounts))
	}
	if mounts["/proc"].number == "" {
		t.Error("/proc has no MAJOR:MINOR number")
	}
	if mounts, err := mountPoints("/proc/self/net"); err != nil || len(mounts) != 0 {
		t.Errorf("below a directory without mounts: got %v, %v; want none", mounts, err)
	}
	if _, err := mountPoints("/does/not/exist"); err == nil {
		t.Error("a root that does not exist: got no error")
	}
}

// A line of the mount table that is too long, such as that of an overlay with many layers, is
// skipped.
func TestLongLineOfTheMountTable(t *testing.T) {
	const short = "22 1 0:20 / /proc rw - proc proc rw\n"
	for _, size := range []int{100, maxLine, 1 << 20} {
		long := fmt.Sprintf("23 1 0:21 / /long rw - overlay overlay lowerdir=%s\n", strings.Repeat("a", size))
		list, err := parseTable([]byte(short+long+short), nil)
		want := 2
		if len(long) <= maxLine {
			want = 3
		}
		if err != nil || len(list) != want {
			t.Errorf("line of %d bytes: got %d mounts, %v; want %d", len(long), len(list), err, want)
		}
	}
}
