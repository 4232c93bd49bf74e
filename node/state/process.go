package state

import (
	"bytes"
	"io"
	"os"
	"strconv"
)

// Dead tells whether a process has been killed, though the kernel has not taken all
// from it yet: while one of its threads hangs in the kernel, its files are open,
// its locks held, and its sockets there. Its first thread has ended by then, which
// in a Go program is the end of all. A process that is not there is not dead, but
// gone, with all that it had.
func Dead(pid int) bool {
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
