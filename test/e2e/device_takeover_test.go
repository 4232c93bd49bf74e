//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/node/fuse"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/journal"
)

// A server stops during a read. Another server in the same process takes over its connection, and
// answers the read.
func TestDetachAndAdopt(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	first, err := fuse.Mount(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	data := noise(7, 1<<20)
	h := newHanging(data)
	_, path := addDevice(t, first, "a", len(data), h)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- first.Serve(ctx) }()
	_, wait := run(t, "cat", path)
	eventually.Holds(t, "a read", func() bool { return h.reads.Load() == 1 })
	cancel()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	kept, err := first.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Detach(); err != nil {
		t.Fatal(err)
	}
	stop := adopt(t, kept, dir, first.State(), "a", inMemory(data))
	if out, err := wait(); err != nil || out != string(data) {
		t.Errorf("the read returned %d bytes (%v), want the %d bytes of the device", len(out), err, len(data))
	}
	stop()
}

// adopt takes over the connection with these descriptors and this state. It serves one device until
// stop is called.
func adopt(t *testing.T, kept []*os.File, dir string, state fuse.State, name string, data inMemory) (stop func()) {
	t.Helper()
	s, err := fuse.Adopt(kept, dir, state, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	addDevice(t, s, name, len(data), data)
	if err := s.Resend(); err != nil {
		t.Fatal(err)
	}
	return startServing(t, s)
}

// deviceHelper is an environment variable. If it is set, the test program runs no tests. It calls a
// function with the program's arguments: helpDevices for "serve", helpCompare for "compare",
// helpFlood for "flood", or helpPages for "pages".
const deviceHelper = "LIGHTER_E2E_DEVICE_HELPER"

func init() {
	var err error
	switch os.Getenv(deviceHelper) {
	case "":
		return
	case "serve":
		err = helpDevices(os.Args[1], os.Args[2], os.Args[3])
	case "compare":
		err = helpCompare(os.Args[1], os.Args[2])
	case "flood":
		err = helpFlood(os.Args[1], os.Args[2] == "true")
	case "pages":
		err = helpPages(os.Args[1], os.Args[2])
	default:
		err = fmt.Errorf("%s=%s: there is no such helper", deviceHelper, os.Getenv(deviceHelper))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serverMessage is a message from helpDevices to the test.
type serverMessage struct {
	State fuse.State // of the connection
	Reads int32      // number of reads that the device has received
}

// helpDevices serves a directory with one device, and never answers a read of it. resend is "true"
// if the kernel resends requests, and "false" if the server has a journal instead. Descriptor 3 is
// a socket to the test. helpDevices sends a message every 5 ms, the first one with the connection's
// descriptors.
func helpDevices(dir, deviceSize, resend string) error {
	size, err := strconv.ParseInt(deviceSize, 10, 64)
	if err != nil {
		return err
	}
	socket, err := net.FileConn(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	mount := fuse.Mount
	if resend != "true" {
		mount = journal.Mount
	}
	s, err := mount(dir, slog.Default())
	if err != nil {
		return err
	}
	kept, err := s.Descriptors()
	if err != nil {
		return err
	}
	h := newHanging(nil)
	if _, err := s.Add(chunk.Sum([]byte("a")), size, h); err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	var fds []int
	for _, file := range kept {
		fds = append(fds, int(file.Fd()))
	}
	rights := unix.UnixRights(fds...)
	for {
		message, err := json.Marshal(serverMessage{s.State(), h.reads.Load()})
		if err != nil {
			return err
		}
		if _, _, err := socket.(*net.UnixConn).WriteMsgUnix(message, rights, nil); err != nil {
			return err
		}
		rights = nil
		select {
		case err := <-served:
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// startDeviceServer starts helpDevices in a process. It returns the connection's descriptors, which
// the test keeps, and a function that receives the next message.
func startDeviceServer(t *testing.T, dir string, size int, resend bool) (cmd *exec.Cmd, kept []*os.File,
	receive func() serverMessage) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours := os.NewFile(uintptr(fds[0]), "theirs"), os.NewFile(uintptr(fds[1]), "ours")
	defer theirs.Close()
	defer ours.Close()
	cmd = exec.Command("/proc/self/exe", dir, strconv.Itoa(size), strconv.FormatBool(resend))
	cmd.Env = append(os.Environ(), deviceHelper+"=serve")
	cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	socket, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	receive = func() (message serverMessage) {
		b, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(2*4))
		n, nOOB, _, _, err := socket.(*net.UnixConn).ReadMsgUnix(b, oob)
		if err != nil {
			t.Fatal(err)
		}
		if controls, err := unix.ParseSocketControlMessage(oob[:nOOB]); err == nil && len(controls) > 0 {
			fds, err := unix.ParseUnixRights(&controls[0])
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range fds {
				kept = append(kept, os.NewFile(uintptr(fd), "kept"))
			}
		}
		if err := json.Unmarshal(b[:n], &message); err != nil {
			t.Fatal(err)
		}
		return message
	}
	receive()
	return cmd, kept, receive
}

// The serving process is killed while reads of ten processes are in flight. Another process takes
// over the connection, and all reads succeed.
func TestServerIsKilled(t *testing.T) {
	for name, resend := range map[string]bool{"resend": true, "journal": false} {
		t.Run(name, func(t *testing.T) { testServerIsKilled(t, resend) })
	}
}

func testServerIsKilled(t *testing.T, resend bool) {
	files := map[string][]byte{}
	for i := range 10 {
		files[strconv.Itoa(i)] = noise(uint64(i), 2<<20)
	}
	image := makeTestImage(t, files)
	dir := t.TempDir()
	helper, kept, receive := startDeviceServer(t, dir, len(image.data), resend)
	stop := func() {}
	t.Cleanup(func() { stop() }) // after the tree is unmounted
	tree := mountImage(t, image, filepath.Join(dir, chunk.Sum([]byte("a")).String()))
	var waits []func() (string, error)
	for name := range files {
		_, wait := run(t, "cmp", filepath.Join(image.source, name), filepath.Join(tree, name))
		waits = append(waits, wait)
	}
	message := receive()
	for message.Reads < 10 {
		message = receive()
	}
	if err := helper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := helper.Wait(); err == nil {
		t.Error("the helper has ended without an error, want it killed")
	}
	stop = adopt(t, kept, dir, message.State, "a", image.data)
	for _, wait := range waits {
		if out, err := wait(); err != nil {
			t.Errorf("a reader during the take-over: %v %s, want no difference", err, out)
		}
	}
}

// A server dies, and no other process has its connection. It leaves a dead mount. The next server
// replaces that mount, although a tree is still mounted from a device of the dead server.
func TestDeadMountIsReplaced(t *testing.T) {
	image := makeTestImage(t, map[string][]byte{"file": noise(8, 1<<20)})
	dir := t.TempDir()
	helper, kept, _ := startDeviceServer(t, dir, len(image.data), true)
	tree := mountImage(t, image, filepath.Join(dir, chunk.Sum([]byte("a")).String()))
	if _, err := fuse.Mount(dir, slog.Default()); err == nil {
		t.Error("mount over a running server succeeded, want an error")
	}
	if err := errors.Join(helper.Process.Kill(), kept[0].Close()); err != nil {
		t.Fatal(err)
	}
	helper.Wait() // returns an error, because the helper was killed
	if _, err := os.ReadFile(filepath.Join(tree, "file")); !errors.Is(err, unix.EIO) {
		t.Errorf("read through the dead mount: %v, want EIO", err)
	}
	s, err := fuse.Mount(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stop := startServing(t, s)
	addDevice(t, s, "a", len(image.data), inMemory(image.data))
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("the directory lists %v (%v), want the new server's device", names, err)
	}
	stop()
	if err := unix.Unmount(dir, 0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("unmount once more: %v, want EINVAL, because no mount is left", err)
	}
}
