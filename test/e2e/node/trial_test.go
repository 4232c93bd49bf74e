//go:build e2e

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/store/hub"
	"lighter/test/testkit/layout"
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
	known := awaitStart(t, client, "python")
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

// awaitStart waits until something is known of how an image starts.
func awaitStart(t *testing.T, client *hub.Client, name string) (known []hub.Starts) {
	t.Helper()
	for try := 0; len(known) == 0 || len(known[0].Workloads) == 0; try++ {
		if try == 600 {
			t.Fatalf("nothing is known of the image's starts: %+v", known)
		}
		time.Sleep(200 * time.Millisecond)
		var err error
		if known, err = client.Starts(t.Context(), name, ""); err != nil {
			t.Fatal(err)
		}
	}
	return known
}

// A trial is of whom the image names, with no more rights than that; an image that
// names nobody whom it has is not started.
func TestTraceRunAsUser(t *testing.T) {
	s := startSiteWith(t, site.Options{HubArgs: []string{"--trace-run"}})
	client, err := hub.NewClient(hub.Options{URL: s.Hub.URL, PlainHTTP: true})
	if err != nil {
		t.Fatal(err)
	}
	work, err := site.Work()
	if err != nil {
		t.Fatal(err)
	}
	// Python is read only if all of it is true.
	script := `[ "$(id -un):$(id -gn)" = www-data:www-data ] && [ ! -w /etc ] && grep -q "CapEff:.0*$" /proc/self/status && exec python3 -c "import json"`
	for _, user := range []string{"nobody-of-that-name", "www-data"} { // one after the other
		to := filepath.Join(t.TempDir(), user)
		if err := layout.Extend(filepath.Join(work, "images", "python"), to, func(l *layout.Layer) error { return l.Dir(user) }); err != nil {
			t.Fatal(err)
		}
		manifest, err := layout.Manifest(to)
		if err != nil {
			t.Fatal(err)
		}
		var config ocispec.Image
		text, err := os.ReadFile(layout.Blob(to, manifest.Config))
		if err := errors.Join(err, json.Unmarshal(text, &config)); err != nil {
			t.Fatal(err)
		}
		config.Config.User, config.Config.Entrypoint, config.Config.Cmd = user, []string{"sh", "-c"}, []string{script}
		if err := errors.Join(layout.Write(to, manifest, config), s.Hub.AddLayout(t.Context(), to, user)); err != nil {
			t.Fatal(err)
		}
	}
	awaitStart(t, client, "www-data:latest")
	text, err := client.ExportTraces(t.Context(), "www-data:latest", "")
	if err != nil || !bytes.Contains(text, []byte("/bin/python3")) {
		t.Errorf("it did not run as it should: %v\n%s", err, text)
	}
	known, err := client.Starts(t.Context(), "nobody-of-that-name:latest", "")
	if err != nil || len(known) != 1 || len(known[0].Workloads) != 0 {
		t.Errorf("of an image of an unknown user is known: %+v, %v", known, err)
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
