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

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/postgres"
	"lighter/test/testkit/site"
	"lighter/wire"
)

// buckets is the number of buckets that newBucket has made.
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

// newCatalog makes an empty database of a server, and returns its URL. Instead of the password, the
// URL has the path of a file with the password.
func newCatalog(t *testing.T, of *postgres.Server) string {
	t.Helper()
	u, err := url.Parse(of.Database(t))
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

// bucketDir returns the directory in which the S3 server stores a bucket.
func bucketDir(t *testing.T, bucket string) string {
	t.Helper()
	u, err := url.Parse(bucket)
	if err != nil {
		t.Fatal(err)
	}
	return storage.Dir(u.Host)
}

// production returns the configuration of each process of a hub with PostgreSQL and S3, as
// docs/operating.md shows it, with collectsAtOnce.
func production(catalog, bucket string) string {
	return fmt.Sprintf("catalog = %q\nbucket = %q\nregistry_hosts = [%q]\n", catalog, bucket, site.ProxyAddress) +
		collectsAtOnce
}

// startProcesses starts a site whose hub has two processes behind a load balancer.
func startProcesses(t *testing.T, config string) (s *site.Site, second *site.Hub, balancer *site.Proxy) {
	t.Helper()
	s = start(t, site.Options{Hubs: []string{site.ProxyURL}}, config)
	second = startSecond(t, s)
	return s, second, startProxy(t, s, s.Hub, second)
}

// startSecond starts another process of a hub, with the keys of the site's hub and the arguments of
// the last SetHubArgs.
func startSecond(t *testing.T, s *site.Site) *site.Hub {
	t.Helper()
	second, err := s.StartSecondProcess(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if log, err := os.ReadFile(second.Log()); err == nil && t.Failed() {
			t.Logf("the log of the hub's second process:\n%s", log)
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	return second
}

// balanced is the reference of an image that was pushed through the load balancer.
func balanced(name string) string { return site.ProxyAddress + "/" + name + ":latest" }

// push pushes an image through the load balancer, and waits until it is ready according to h.
func push(t *testing.T, h *site.Hub, layout, name string) {
	t.Helper()
	startPush(t, layout, name)
	eventually.Holds(t, name+" to be ready", func() bool { return isReady(t, h, name+":latest") })
}

// startPush pushes an image through the load balancer. It does not wait until the image is ready.
func startPush(t *testing.T, layout, name string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "skopeo", "copy", "--quiet", "--insecure-policy", "--preserve-digests",
		"--dest-tls-verify=false", "oci:"+layout+":latest", "docker://"+balanced(name)).CombinedOutput()
	if err != nil {
		t.Fatalf("push %s with skopeo: %v: %s", name, err, out)
	}
}

// uploadProcesses reads the load balancer's log, and returns the largest number of the hub's
// processes that have received requests of one upload.
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

// A hub with PostgreSQL and S3 has two processes behind a load balancer. An upload begins at one
// process and ends at the other. When one process is killed, containers read on, and images are
// pushed, pulled and removed as before.
func TestOneOfTwoProcessesIsKilled(t *testing.T) {
	bucket := newBucket(t)
	s, second, balancer := startProcesses(t, production(newCatalog(t, database), bucket))
	push(t, second, image(t, 0, 12), "prod")
	if n := uploadProcesses(t, balancer.Log); n != 2 {
		t.Errorf("the requests of an upload have gone to %d processes at most, want 2 for at least one upload", n)
	}
	c := run(t, s, balanced("prod"))
	reads(t, c, 0, 4)
	holder(t, second, "one tree", func(h wire.Holder) bool { return h.Trees == 1 })

	reading := make(chan error, 1)
	go func() { reading <- read(t, c, 4, 8) }()
	s.Hub.Kill()
	if err := <-reading; err != nil {
		t.Errorf("a read while one of the hub's processes was killed: %v", err)
	}
	reads(t, c, 8, 12)
	forget(t, s)
	reads(t, c, 0, 12)
	push(t, second, image(t, 6, 14), "after")
	later := run(t, s, balanced("after"))
	reads(t, later, 6, 14)
	hubCommand(t, second, "rm", "prod:latest")
	if done := collect(t, second); done.Trees != 0 {
		t.Errorf("the collection while the node holds the image: %+v, want no tree freed", done)
	}
	forget(t, s)
	reads(t, c, 0, 12)

	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the restarted process to list the image", func() bool {
		return isReady(t, s.Hub, "after:latest")
	})
	hubCommand(t, s.Hub, "fsck", "--deep")
}

// A running hub with PostgreSQL and S3 is copied as docs/operating.md says: first its database is
// dumped, and then its bucket is copied. Images are removed and pushed meanwhile. A hub that starts
// from the copy has every image that the dump names, in each domain, and the same keys.
func TestHubIsCopiedWhileItRuns(t *testing.T) {
	catalog, bucket := newCatalog(t, database), newBucket(t)
	config := production(catalog, bucket) + withTeam
	s, second, _ := startProcesses(t, config)
	push(t, second, image(t, 0, 4), "stays")
	push(t, second, image(t, 4, 8), "goes")
	const ofTeam = "team/goes:latest"
	inTeam := []string{"--domain", "team"}
	startPush(t, image(t, 4, 8), "team/goes")
	eventually.Holds(t, ofTeam+" to be ready", func() bool { return isReady(t, second, ofTeam, inTeam...) })

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
	eventually.Holds(t, "the dump", func() bool {
		select {
		case err := <-copied:
			t.Fatalf("lighter backup hold has ended before the database was dumped: %v", err)
		default:
		}
		_, err := os.Stat(dumped)
		return err == nil
	})
	// A collection leaves a tree to the next one if a job has just improved the tree's layout.
	hubCommand(t, second, "rm", "goes:latest")
	eventually.Holds(t, "the tree to be freed during the copy", func() bool { return collect(t, s.Hub).Trees == 1 })
	hubCommand(t, second, "rm", append(inTeam, ofTeam)...)
	eventually.Holds(t, "the tree of the domain team to be freed during the copy", func() bool {
		return hubJSON[wire.Collection](t, s.Hub, "gc --wait", inTeam...).Trees == 1
	})
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
	restoredCatalog, restoredBucket := newCatalog(t, database), newBucket(t)
	for _, argv := range [][]string{
		{"/usr/lib/postgresql/15/bin/pg_restore", "--no-owner", "--exit-on-error", "--dbname=" + restoredCatalog,
			filepath.Join(dir, "catalog.dump")},
		{"cp", "-a", filepath.Join(dir, "bucket") + "/.", bucketDir(t, restoredBucket)},
	} {
		if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", argv[0], err, out)
		}
	}
	s.SetHubArgs("--config", configFile(t, production(restoredCatalog, restoredBucket)+withTeam))
	restored := startSecond(t, s)
	if restored.Key != s.Hub.Key {
		t.Errorf("the hub from the copy has the key %s, want %s", restored.Key, s.Hub.Key)
	}
	for name, flags := range map[string][]string{"stays:latest": nil, "goes:latest": nil, ofTeam: inTeam} {
		if !isReady(t, restored, name, flags...) {
			t.Errorf("the hub from the copy does not have %s", name)
		}
	}
	out, err := restored.Lighter(t.Context(), "fsck", "--deep", "--json")
	for _, name := range []string{"goes:latest", "comes:latest"} {
		if err == nil || !strings.Contains(fmt.Sprint(out, err), name) {
			t.Errorf("fsck of the hub from the copy: %v\n%s\nwant an error, and %s in the output", err, out, name)
		}
	}
	hubCommand(t, restored, "verify", "stays:latest")
	// Images that were removed from the copied hub after the dump can be read from the hub from the
	// copy.
	teamKey := strings.TrimSpace(runLighter(t, s, "hub", "key", "show", "--root", restored.Root, "--domain", "team"))
	if teamKey == restored.Key {
		t.Errorf("the default domain and the domain team both have the key %s, want different keys", teamKey)
	}
	readsMount(t, mount(t, s, restored.URL, restored.Key, "goes:latest"), 4, 8)
	readsMount(t, mount(t, s, restored.URL, teamKey, ofTeam, inTeam...), 4, 8)
	// After the repair, the catalog has the same images as the registry.
	hubCommand(t, restored, "fsck", "--deep", "--repair")
	eventually.Holds(t, "the image that was pushed during the copy", func() bool {
		return isReady(t, restored, "comes:latest")
	})
	if isReady(t, restored, "goes:latest") {
		t.Error("the image that was removed during the copy is still listed")
	}
	// Without --confirm, the repair would not remove the only name of the domain.
	hubCommand(t, restored, "fsck", append(inTeam, "--deep", "--repair", "--confirm")...)
	if isReady(t, restored, ofTeam, inTeam...) {
		t.Error("the image of the domain team that was removed during the copy is still listed")
	}
}
