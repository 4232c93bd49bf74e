package mount

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A kernel without direct I/O for EROFS mounts the local device without it.
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
		t.Errorf("%s, %v: %q", mode, err, options)
	}
}
