package mount

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// If the kernel has no direct I/O for EROFS, the local device is mounted without direct I/O.
func TestLocalDeviceWithoutDirectIO(t *testing.T) {
	var options []string
	k := kernel{Auto, func(_, _, _ string, _ uintptr, data string) error {
		if options = append(options, data); len(options) == 1 {
			return unix.EINVAL
		}
		return nil
	}}
	if mode, err := k.mountLocal("metadata", "file", "dir"); mode != File || err != nil ||
		!slices.Equal(options, []string{"device=file,directio", "device=file"}) {
		t.Errorf("got mode %s, %v with options %q; want mode file, first with and then without directio",
			mode, err, options)
	}
}
