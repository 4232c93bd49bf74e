//go:build e2e

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/wire"
	"lighter/wire/client"
)

// With trace_run a hub starts each image once, without network, and so knows what
// its starts read before anybody has started it; nothing of that is left.
func TestTraceRun(t *testing.T) {
	s := startSiteWith(t, site.Options{HubArgs: []string{"--trace-run"}}, "python")
	client, err := client.New(client.Options{URL: s.Hub.URL, PlainHTTP: true})
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
	addScript(t, s, "sleeper", "", "exec sleep 600")
	var users string
	for try := 0; users == ""; try++ {
		if try == 2400 {
			t.Fatal("no trial runs")
		}
		time.Sleep(100 * time.Millisecond)
		users = trialUsers(t, s.Hub.Root, "sleep")
	}
	// Root of an image is nobody of this machine.
	for _, user := range strings.Fields(users) {
		if n, err := strconv.Atoi(user); err != nil || n < 1<<20 {
			t.Errorf("an image's root is one of this machine's users: %s, %v", users, err)
		}
	}
	for _, pid := range trialRuns(t, s.Hub.Root) { // it does not end because it sees the hub gone
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	s.Hub.Kill()
	for try := 0; len(trialRuns(t, s.Hub.Root)) > 0; try++ {
		if try == 100 {
			t.Fatal("the trial outlives its hub")
		}
		time.Sleep(100 * time.Millisecond)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), "/trial/") {
		t.Errorf("left mounted:\n%s\n%v", mounts, err)
	}
	// Control groups are nobody's but the machine's; the next hub removes them.
	if len(trialCgroups(t, s.Hub.Root)) == 0 {
		t.Error("the killed trial left no control group")
	}
	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := trialCgroups(t, s.Hub.Root); len(left) > 0 {
		t.Errorf("the next hub leaves %v", left)
	}
}

// trialCgroups lists the control groups of the trials of the hub in root.
func trialCgroups(t *testing.T, root string) (all []string) {
	t.Helper()
	info, err := os.Stat(root)
	if err != nil {
		t.Fatal(err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	name := fmt.Sprintf("lighter-trial-%x-%x", stat.Dev, stat.Ino)
	for _, pattern := range []string{name, "*/" + name} {
		found, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// awaitStart waits until something is known of how an image starts.
func awaitStart(t *testing.T, client *client.Client, name string) (known []wire.Starts) {
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
	client, err := client.New(client.Options{URL: s.Hub.URL, PlainHTTP: true})
	if err != nil {
		t.Fatal(err)
	}
	// Python is read only if all of it is true.
	const python = ` && exec python3 -c "import json"`
	scripts := []struct{ user, script string }{ // one after the other
		{"nobody-of-that-name", "true"},
		{"root", `[ "$(id -u)" = 0 ] && [ "$(stat -c %U:%G /etc/shadow)" = root:shadow ] && cat /etc/shadow && chown www-data /etc/passwd`},
		{"www-data", `[ "$(id -un):$(id -gn)" = www-data:www-data ] && [ ! -w /etc ] && grep -q "CapEff:.0*$" /proc/self/status`},
	}
	for _, image := range scripts {
		addScript(t, s, image.user, image.user, image.script+python)
	}
	for _, name := range []string{"root:latest", "www-data:latest"} {
		awaitStart(t, client, name)
		text, err := client.ExportTraces(t.Context(), name, "")
		if err != nil || !bytes.Contains(text, []byte("/bin/python3")) {
			t.Errorf("%s did not run as it should: %v\n%s", name, err, text)
		}
	}
	known, err := client.Starts(t.Context(), "nobody-of-that-name:latest", "")
	if err != nil || len(known) != 1 || len(known[0].Workloads) != 0 {
		t.Errorf("of an image of an unknown user is known: %+v, %v", known, err)
	}
}

// addScript adds an image with Python to the hub that runs a script as a user.
func addScript(t *testing.T, s *site.Site, name, user, script string) {
	t.Helper()
	work, err := site.Work()
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), name)
	if err := layout.Extend(filepath.Join(work, "images", "python"), to, func(l *layout.Layer) error { return l.Dir(name) }); err != nil {
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
	if err := errors.Join(layout.Write(to, manifest, config), s.Hub.AddLayout(t.Context(), to, name)); err != nil {
		t.Fatal(err)
	}
}

// trialUsers returns the users (real, effective, saved, of files) that the process of a trial whose
// command line begins with command has on this machine; none if there is no such process.
func trialUsers(t *testing.T, root, command string) string {
	t.Helper()
	for _, group := range trialCgroups(t, root) {
		list, _ := os.ReadFile(filepath.Join(group, "cgroup.procs")) // it may just have gone
		for pid := range strings.FieldsSeq(string(list)) {
			line, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
			status, _ := os.ReadFile(filepath.Join("/proc", pid, "status"))
			_, after, found := strings.Cut(string(status), "\nUid:")
			if users, _, _ := strings.Cut(after, "\n"); found && strings.HasPrefix(string(line), command+"\x00") {
				return users
			}
		}
	}
	return ""
}

// trialRuns lists the processes that are part of a trial of the hub in root.
func trialRuns(t *testing.T, root string) (pids []int) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range lines {
		line, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(line, []byte(filepath.Join(root, "trial"))) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
