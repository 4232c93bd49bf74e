//go:build e2e

package hubs

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"lighter/test/testkit/site"
	"lighter/wire"
)

var buckets atomic.Int64

// newBucket makes an empty bucket.
func newBucket(t *testing.T) string {
	t.Helper()
	bucket, err := storage.Bucket(int(buckets.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	return bucket
}

// newCatalog makes an empty database, and returns its URL with a file for the password.
func newCatalog(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(database.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	file := filepath.Join(t.TempDir(), "pgpass")
	line := fmt.Sprintf("%s:%s:*:%s:%s\n", u.Hostname(), u.Port(), u.User.Username(), password)
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	u.User, u.RawQuery = url.User(u.User.Username()), url.Values{"passfile": {file}}.Encode()
	return u.String()
}

// bucketDir returns the directory of the S3 server that has a bucket.
func bucketDir(t *testing.T, bucket string) string {
	t.Helper()
	u, err := url.Parse(bucket)
	if err != nil {
		t.Fatal(err)
	}
	return storage.Dir(u.Host)
}

// production is the configuration of all processes of a hub, as docs/operating.md has it.
func production(catalog, bucket string) string {
	return fmt.Sprintf("catalog = %q\nbucket = %q\nregistry_hosts = [%q]\n", catalog, bucket, site.ProxyAddress) +
		collectsAtOnce
}

// startProcesses starts two processes of a hub, and a load balancer before them.
func startProcesses(t *testing.T, config string) (s *site.Site, second *site.Hub, balancer *site.Proxy) {
	t.Helper()
	s = start(t, site.Options{Hubs: []string{site.ProxyURL}}, config)
	second = startSecond(t, s)
	return s, second, startProxy(t, s, s.Hub, second)
}

func startSecond(t *testing.T, s *site.Site) *site.Hub {
	t.Helper()
	second, err := s.StartSecondProcess(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if log, err := os.ReadFile(second.Log()); err == nil && t.Failed() {
			t.Logf("the second process:\n%s", log)
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	return second
}

// balanced is the reference of an image that was pushed through the load balancer.
func balanced(name string) string { return site.ProxyAddress + "/" + name + ":latest" }

// push pushes an image through the load balancer, and waits until it is ready.
func push(t *testing.T, h *site.Hub, layout, name string) {
	t.Helper()
	copyTo(t, layout, name)
	eventually(t, name+" to be ready", func() bool { return isReady(t, h, name+":latest") })
}

// copyTo pushes an image through the load balancer.
func copyTo(t *testing.T, layout, name string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "skopeo", "copy", "--quiet", "--insecure-policy", "--preserve-digests",
		"--dest-tls-verify=false", "oci:"+layout+":latest", "docker://"+balanced(name)).CombinedOutput()
	if err != nil {
		t.Fatalf("skopeo: %v: %s", err, out)
	}
}

// uploadProcesses returns the most processes that have received requests of one upload.
func uploadProcesses(t *testing.T, log string) (most int) {
	t.Helper()
	processes := map[string][]string{}
	for _, line := range lines(t, log, "/blobs/uploads/") {
		path := strings.Fields(line)[1]
		_, address, _ := strings.Cut(line, "[")
		address, _, _ = strings.Cut(address, "]")
		if id := filepath.Base(path); id != "uploads" && !slices.Contains(processes[id], address) {
			processes[id] = append(processes[id], address)
			most = max(most, len(processes[id]))
		}
	}
	return most
}

// Two processes of a hub with PostgreSQL and S3 are behind a load balancer. An upload begins at one
// of them and ends at the other. When one is killed, containers read on, and images are pushed,
// pulled and removed as before.
func TestOneOfTwoProcessesIsKilled(t *testing.T) {
	bucket := newBucket(t)
	s, second, balancer := startProcesses(t, production(newCatalog(t), bucket))
	push(t, second, image(t, 0, 12), "prod")
	if n := uploadProcesses(t, balancer.Log); n != 2 {
		t.Errorf("the requests of each upload have gone to %d processes, want 2 for some", n)
	}
	c := run(t, s, balanced("prod"))
	reads(t, c, 0, 4)
	holder(t, second, "one tree", func(h wire.Holder) bool { return h.Trees == 1 })

	reading := make(chan error, 1)
	go func() { reading <- read(t, c, 4, 8) }()
	s.Hub.Kill()
	if err := <-reading; err != nil {
		t.Errorf("while a process was killed: %v", err)
	}
	reads(t, c, 8, 12)
	forget(t, s)
	reads(t, c, 0, 12)
	push(t, second, image(t, 6, 14), "after")
	again := run(t, s, balanced("after"))
	reads(t, again, 6, 14)
	good(t, second, "rm", "prod:latest")
	if done := collect(t, second); done.Trees != 0 {
		t.Errorf("the collection of a held image: %+v, want nothing freed", done)
	}
	forget(t, s)
	reads(t, c, 0, 12)

	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first process", func() bool { return isReady(t, s.Hub, "after:latest") })
	good(t, s.Hub, "fsck", "--deep")
}

// A hub with PostgreSQL and S3 is copied with the tools of both while it runs, as
// docs/operating.md says. Images are removed and pushed meanwhile. A hub from the copy has
// everything that the dump names in each domain, under the same keys.
func TestHubIsCopiedWhileItRuns(t *testing.T) {
	catalog, bucket := newCatalog(t), newBucket(t)
	config := production(catalog, bucket) + withTeam
	s, second, _ := startProcesses(t, config)
	push(t, second, image(t, 0, 4), "stays")
	push(t, second, image(t, 4, 8), "goes")
	const ofTeam = "team/goes:latest"
	inTeam := []string{"--domain", "team"}
	copyTo(t, image(t, 4, 8), "team/goes")
	eventually(t, ofTeam+" to be ready", func() bool { return isReady(t, second, ofTeam, inTeam...) })

	dir := t.TempDir()
	dumped, goOn := filepath.Join(dir, "dumped"), filepath.Join(dir, "go-on")
	script := filepath.Join(dir, "copy-hub")
	text := fmt.Sprintf(`#!/bin/sh
set -eu
/usr/lib/postgresql/15/bin/pg_dump --format=custom --file=%[1]s/catalog.dump '%[2]s'
touch %[3]s
while [ ! -e %[4]s ]; do sleep 0.1; done
cp -a %[5]s %[1]s/bucket
cp -p %[6]s/hub.key %[1]s/hub.key
`, dir, catalog, dumped, goOn, bucketDir(t, bucket), s.Hub.Root)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	copied := make(chan error, 1)
	go func() {
		out, err := exec.CommandContext(t.Context(), lighter, "backup", "hold", "--config", configFile(t, config), "--",
			script).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		copied <- err
	}()
	eventually(t, "the dump", func() bool {
		select {
		case err := <-copied:
			t.Fatalf("the copy has ended: %v", err)
		default:
		}
		_, err := os.Stat(dumped)
		return err == nil
	})
	good(t, second, "rm", "goes:latest")
	if done := collect(t, s.Hub); done.Trees != 1 {
		t.Errorf("the collection during the copy: %+v, want a tree", done)
	}
	good(t, second, "rm", append(inTeam, ofTeam)...)
	if done := asked[wire.Collection](t, s.Hub, "gc --wait", inTeam...); done.Trees != 1 {
		t.Errorf("the collection in the other domain during the copy: %+v, want a tree", done)
	}
	push(t, second, image(t, 8, 10), "comes")
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-copied; err != nil {
		t.Fatal(err)
	}

	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	restored, to := newCatalog(t), newBucket(t)
	for _, argv := range [][]string{
		{"/usr/lib/postgresql/15/bin/pg_restore", "--no-owner", "--exit-on-error", "--dbname=" + restored,
			filepath.Join(dir, "catalog.dump")},
		{"cp", "-a", filepath.Join(dir, "bucket") + "/.", bucketDir(t, to)},
	} {
		if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", argv[0], err, out)
		}
	}
	s.SetHubArgs("--config", configFile(t, production(restored, to)+withTeam))
	again := startSecond(t, s)
	if again.Key != s.Hub.Key {
		t.Errorf("the hub from the copy has the key %s, want %s", again.Key, s.Hub.Key)
	}
	for name, flags := range map[string][]string{"stays:latest": nil, "goes:latest": nil, ofTeam: inTeam} {
		if !isReady(t, again, name, flags...) {
			t.Errorf("the hub from the copy does not have %s", name)
		}
	}
	out, err := again.Lighter(t.Context(), "fsck", "--deep", "--json")
	for _, name := range []string{"goes:latest", "comes:latest"} {
		if err == nil || !strings.Contains(fmt.Sprint(out, err), name) {
			t.Errorf("the check of the hub from the copy does not name %s: %v\n%s", name, err, out)
		}
	}
	good(t, again, "verify", "stays:latest")
	// Nodes read the images that have been removed from the first hub.
	teamKey := strings.TrimSpace(runLighter(t, s, "hub", "key", "show", "--root", again.Root, "--domain", "team"))
	if teamKey == again.Key {
		t.Error("two domains have one key")
	}
	readsMount(t, mount(t, s, again.URL, again.Key, "goes:latest"), 4, 8)
	readsMount(t, mount(t, s, again.URL, teamKey, ofTeam, inTeam...), 4, 8)
	// After the repair, the catalog has what the registry has.
	good(t, again, "fsck", "--deep", "--repair")
	eventually(t, "the image that was pushed during the copy", func() bool { return isReady(t, again, "comes:latest") })
	if isReady(t, again, "goes:latest") {
		t.Error("the image that was removed during the copy is still listed")
	}
	good(t, again, "fsck", append(inTeam, "--deep", "--repair", "--confirm")...) // its only name is removed
	if isReady(t, again, ofTeam, inTeam...) {
		t.Error("the other domain's image that was removed during the copy is still listed")
	}
}
