// Package killed tells processes that are being killed from those that only get a signal.
//
// The kernel sends INTERRUPT for a request of a FUSE file system once, at the first signal of any
// kind. If the answer is EINTR then, a system call fails that no signal interrupts on a disk: stat,
// open, or a walk along a path. Programs do not try it again. But a signal may come at any moment:
// Go's runtime sends SIGURG to its own threads. So a request goes on after a signal. It ends early
// only if its process is being killed: the kernel keeps such a process until the answer has come.
package killed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// interval is the time between two looks at a process that got a signal. The kernel does not tell
// about its further signals.
const interval = 500 * time.Millisecond

// Context returns the context of a request of go-fuse without its cancellation by signals. It is
// cancelled once the requesting thread is being killed. cancel releases its resources.
func Context(request context.Context) (ctx context.Context, cancel context.CancelFunc) {
	var thread uint32
	if caller, ok := fuse.FromContext(request); ok {
		thread = caller.Pid
	}
	ctx, end := context.WithCancel(context.WithoutCancel(request))
	stop := context.AfterFunc(request, func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for !Thread(thread) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		end()
	})
	return ctx, func() {
		stop()
		end()
	}
}

// Thread reports whether a thread is being killed, or has ended. 0 is a thread in another PID
// namespace, of which nothing is known.
func Thread(thread uint32) bool {
	if thread == 0 {
		return false
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH)
	}
	// When a signal kills a process, the kernel sends SIGKILL to each of its threads.
	_, rest, _ := strings.Cut(string(status), "\nSigPnd:\t")
	text, _, _ := strings.Cut(rest, "\n")
	pending, err := strconv.ParseUint(text, 16, 64)
	return err == nil && pending&(1<<(syscall.SIGKILL-1)) != 0
}
