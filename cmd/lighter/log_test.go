package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/cmd/command"
)

// runsMain is an environment variable. If it is set, the test's binary is the command lighter.
const runsMain = "LIGHTER_TEST_RUNS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runsMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// fullPipe returns the write end of a full pipe: a write to it blocks.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := unix.Write(fds[1], make([]byte, 1)); err == unix.EAGAIN {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.SetNonblock(fds[1], false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[0]) })
	return os.NewFile(uintptr(fds[1]), "full pipe")
}

// A daemon that fails ends even if nothing reads its error, so that another one can be started.
func TestErrorThatNobodyReads(t *testing.T) {
	t.Parallel()
	stderr := fullPipe(t)
	defer stderr.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	hub := exec.CommandContext(ctx, os.Args[0], "hub", "--root", "/dev/null/root", "--listen", "127.0.0.1:0")
	hub.Env, hub.Stderr = append(os.Environ(), runsMain+"=1"), stderr
	if err := hub.Run(); hub.ProcessState.ExitCode() != command.ExitFailed {
		t.Errorf("the hub: %v, want that it ends with exit 1", err)
	}
}

// A hub whose log nothing reads answers as before, and ends on SIGTERM. (A node's log is made by
// the same function.)
func TestLogThatNobodyReads(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "admin.sock") // a port could be taken by others meanwhile
	stderr := fullPipe(t)
	hub := exec.Command(os.Args[0], "hub", "--root", t.TempDir(), "--listen", "127.0.0.1:0", "--admin-listen",
		"unix:"+socket, "--log-level", "debug")
	hub.Env, hub.Stderr = append(os.Environ(), runsMain+"=1"), stderr
	if err := hub.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- hub.Wait() }()
	t.Cleanup(func() { _ = hub.Process.Kill(); stderr.Close() })

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var dialer net.Dialer
	client := http.Client{Transport: &http.Transport{DialContext: func(
		ctx context.Context, _, _ string,
	) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", socket)
	}}}
	t.Cleanup(client.CloseIdleConnections)
	ask := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://hub/lighter/1/default/key", nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return err
	}
	for err := ask(); err != nil; err = ask() { // until it listens
		if ctx.Err() != nil {
			t.Fatalf("the hub does not answer: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	for n := range 3 * 1024 { // each is a line of the log
		if err := ask(); err != nil {
			t.Fatalf("request %d: %v", n, err)
		}
	}
	if err := hub.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Fatal("the hub does not end")
	}
}
