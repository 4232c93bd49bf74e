package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// loopPrefix begins the paths of loop devices.
const loopPrefix = "/dev/loop"

// attach makes a read-only loop device of a file. The kernel frees the loop device when its last
// user closes it. The caller closes fd after it has mounted the loop device.
//
// With direct I/O, the file's pages are not cached twice, and reads can run in parallel. If the
// file does not support direct I/O, the kernel uses buffered I/O.
func attach(path string) (device string, fd int, err error) {
	// Not os.Open, which polls the file: this process may serve the file (package fuse), and would
	// wait for itself.
	file, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", -1, fmt.Errorf("open %s for a loop device: %w", path, err)
	}
	defer unix.Close(file)
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", -1, fmt.Errorf("open /dev/loop-control: %w (loop devices are needed: load the module loop)", err)
	}
	defer unix.Close(control)
	config := unix.LoopConfig{Fd: uint32(file), Size: loopBlock}
	config.Info.Flags = unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
	for range loopTries {
		if device, fd, err = attachFree(control, &config); !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	if err != nil {
		return "", -1, fmt.Errorf("put %s behind a loop device: %w", path, err)
	}
	return device, fd, nil
}

// attachFree configures a free loop device. It returns EBUSY if another process has taken the
// device in the meantime.
func attachFree(control int, config *unix.LoopConfig) (device string, fd int, err error) {
	number, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return "", -1, fmt.Errorf("find a free loop device: %w", err)
	}
	device = fmt.Sprint(loopPrefix, number)
	if fd, err = unix.Open(device, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return "", -1, fmt.Errorf("open %s: %w (in a container the host's /dev is needed)", device, err)
	}
	if err = unix.IoctlLoopConfigure(fd, config); err == nil {
		err = unix.IoctlSetInt(fd, unix.BLKRASET, loopReadAhead)
	}
	if err != nil {
		return "", -1, errors.Join(fmt.Errorf("configure %s: %w", device, err), unix.Close(fd))
	}
	return device, fd, nil
}

// attachBoth makes loop devices of both files of a tree. The caller calls release after it has
// mounted the tree.
func attachBoth(metadata, device string) (metadataLoop, deviceLoop string, release func(), err error) {
	metadataLoop, first, err := attach(metadata)
	if err != nil {
		return "", "", nil, err
	}
	deviceLoop, second, err := attach(device)
	if err != nil {
		unix.Close(first)
		return "", "", nil, err
	}
	return metadataLoop, deviceLoop, func() { unix.Close(first); unix.Close(second) }, nil
}

// backing returns the file behind a loop device, or the device itself if it was freed meanwhile.
func backing(device string) string {
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file"))
	if err != nil {
		return device
	}
	return strings.TrimSuffix(string(text), "\n")
}
