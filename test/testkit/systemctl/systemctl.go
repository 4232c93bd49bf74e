// Package systemctl makes a machine look as if systemd ran, with a program systemctl that a test
// answers. It is for enclosed tests (site.Enclosed), whose /run is their own.
package systemctl

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// New makes the program until the end of the test, and returns its directory. `systemctl restart
// UNIT` calls restart, and fails if that returns an error. Other calls that an installation makes
// succeed and do nothing.
func New(tb testing.TB, restart func(unit string) error) (dir string) {
	tb.Helper()
	dir = tb.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	const booted = "/run/systemd/system"
	script := fmt.Sprintf("#!/bin/sh\necho \"$*\" >%[1]s/ask\nread code <%[1]s/answer\nexit $code\n", dir)
	if err := errors.Join(os.MkdirAll(booted, 0o755), syscall.Mkfifo(path("ask"), 0o600),
		syscall.Mkfifo(path("answer"), 0o600), os.WriteFile(path("systemctl"), []byte(script), 0o755)); err != nil {
		tb.Fatal(err)
	}
	// Both are open for reading and writing: a caller that was killed does not end the other side.
	ask, err := os.OpenFile(path("ask"), os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	answer, err := os.OpenFile(path("answer"), os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for calls := bufio.NewScanner(ask); calls.Scan() && calls.Text() != ""; {
			fmt.Fprintln(answer, code(tb, calls.Text(), restart))
		}
	}()
	tb.Cleanup(func() {
		fmt.Fprintln(ask) // an empty line ends the goroutine
		<-ended
		if err := errors.Join(ask.Close(), answer.Close(), os.RemoveAll(filepath.Dir(booted))); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

// code does what systemctl was called for, and returns its exit code.
func code(tb testing.TB, call string, restart func(unit string) error) int {
	verb, unit, _ := strings.Cut(call, " ")
	switch verb {
	case "daemon-reload", "reset-failed":
		return 0
	case "restart":
		if err := restart(unit); err != nil {
			tb.Logf("systemctl %s: %v", call, err)
			return 1
		}
		return 0
	}
	tb.Errorf("systemctl %s: want another call", call)
	return 1
}
