package killed

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"testing/synctest"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A thread that runs is not being killed, a thread that has ended is. Nothing is known of a thread
// without a number.
func TestThread(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	for thread, want := range map[int]bool{0: false, os.Getpid(): false, cmd.Process.Pid: true} {
		if got := Thread(uint32(thread)); got != want {
			t.Errorf("thread %d: got %t, want %t", thread, got, want)
		}
	}
}

// A request goes on after a signal, and ends if its thread has ended.
func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			thread uint32
			ended  bool
		}{{0, false}, {uint32(os.Getpid()), false}, {1 << 31, true}} {
			got, signal := context.WithCancel(t.Context())
			ctx, cancel := Context(fuse.NewContext(got, &fuse.Caller{Pid: c.thread}))
			if synctest.Wait(); ctx.Err() != nil {
				t.Errorf("thread %d: got %v before a signal", c.thread, ctx.Err())
			}
			signal()
			if synctest.Wait(); (ctx.Err() != nil) != c.ended {
				t.Errorf("thread %d: got %v after a signal, want an error: %t", c.thread, ctx.Err(), c.ended)
			}
			if caller, ok := fuse.FromContext(ctx); !ok || caller.Pid != c.thread {
				t.Errorf("got caller %v, want thread %d", caller, c.thread)
			}
			cancel()
		}
	})
}
