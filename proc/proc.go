// Package proc asks the kernel about other processes of this machine: which process is at the other
// end of a Unix socket, and whether a process is dead. It changes nothing and sends no signals.
package proc

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Peer returns the process and user at the other end of a Unix socket (SO_PEERCRED). For a
// connection that this process made, that is the process that listened. The PID is 0 if the
// process is in a PID namespace that is not visible from here.
func Peer(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(err, failed)
}

// IsDead reports whether a process was killed but still holds its resources: while one of its
// threads hangs in the kernel, its files stay open, its locks held and its sockets bound. A
// process that does not exist has released everything: it is not dead but gone.
//
// The kernel shows such a process as a zombie: its first thread has ended, which in a Go program
// means that the whole process has ended.
func IsDead(pid int) bool {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	defer file.Close()
	stat, err := io.ReadAll(io.LimitReader(file, 4096))
	if err != nil {
		return false
	}
	_, state, found := bytes.Cut(stat, []byte(") ")) // PID (NAME) STATE ...
	return found && len(state) > 0 && (state[0] == 'Z' || state[0] == 'X')
}
