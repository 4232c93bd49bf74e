//go:build e2e

package node

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lighter/store/hub"
	"lighter/test/testkit/site"
)

// With trace_run a hub starts each image once, without network, and so knows what
// its starts read before anybody has started it; nothing of that is left.
func TestTraceRun(t *testing.T) {
	s := startSiteWith(t, site.Options{HubArgs: []string{"--trace-run"}}, "python")
	client, err := hub.NewClient(hub.Options{URL: s.Hub.URL, PlainHTTP: true})
	if err != nil {
		t.Fatal(err)
	}
	var known []hub.Starts
	for try := 0; len(known) == 0 || len(known[0].Workloads) == 0; try++ {
		if try == 600 {
			t.Fatalf("nothing is known of the image's starts: %+v", known)
		}
		time.Sleep(200 * time.Millisecond)
		if known, err = client.Starts(t.Context(), "python", ""); err != nil {
			t.Fatal(err)
		}
	}
	w := known[0].Workloads[0]
	if w.Starts != 1 || w.Files < 3 || w.Bytes < 1<<20 || len(w.Packs) == 0 {
		t.Errorf("known is %+v", known)
	}
	for try := 0; ; try++ {
		_, err := os.Stat(filepath.Join(s.Hub.Root, "trial"))
		if os.IsNotExist(err) {
			break
		}
		if try == 100 {
			t.Fatalf("the trial's directory is there: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	// A hub that is killed in a trial takes it along.
	if err := s.Hub.Add(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	for try := 0; len(trialRuns(t)) == 0; try++ {
		if try == 300 {
			t.Fatal("no trial runs")
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, pid := range trialRuns(t) { // it does not end because it sees the hub gone
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	s.Hub.Kill()
	for try := 0; len(trialRuns(t)) > 0; try++ {
		if try == 100 {
			t.Fatal("the trial outlives its hub")
		}
		time.Sleep(100 * time.Millisecond)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), "/trial/") {
		t.Errorf("left mounted:\n%s\n%v", mounts, err)
	}
}

// trialRuns lists the processes that are part of a trial.
func trialRuns(t *testing.T) (pids []int) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range lines {
		line, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(line, []byte("/trial")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
