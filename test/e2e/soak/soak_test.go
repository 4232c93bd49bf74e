//go:build e2e

package soak

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/node/control"
	"lighter/node/keeper"
	"lighter/node/mount"
	"lighter/test/testkit/images"
	"lighter/test/testkit/journal"
	"lighter/test/testkit/site"
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// long is true in `make soak`: the tests run in their long form.
var long = os.Getenv("LIGHTER_SOAK") != ""

// times returns a number of repetitions: soak in `make soak`, and otherwise short.
func times(short, soak int) int {
	if long {
		return soak
	}
	return short
}

// disturbed is a site with two containers. Their reads must succeed whatever happens to the node.
type disturbed struct {
	*site.Site
	t      *testing.T
	whole  *wholeReader
	random *randomReader

	kills     int // number of times that a daemon was killed
	busyKills int // number of kills while reads were in flight
}

// disturb starts a site and its readers. It calls prepare before the first read.
func disturb(t *testing.T, options site.Options, prepare func(*site.Site)) *disturbed {
	t.Helper()
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	// On this slow link, reads are in flight most of the time after the caches were emptied.
	options.Lighter, options.Link, options.Ingested = lighter, "200mbit", []string{"python"}
	s, err := site.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	d := &disturbed{Site: s, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(s.Machine.NodeLog()) // for information only
			t.Logf("the log of all daemons:\n%s", log)
			d.abort()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	data := addData(t, s)
	for _, name := range []string{"python", data} {
		if _, err := s.Machine.Pull(t.Context(), site.Lighter, site.Reference(name)); err != nil {
			t.Fatal(err)
		}
	}
	prepare(s)
	d.whole, d.random = readWhole(t, s, "python", images.Dir("python")), readRandomly(t, s, data)
	return d
}

// unprepared is the argument prepare of disturb if a test needs no preparations.
func unprepared(*site.Site) {}

// useJournal kills the daemon, and starts one that keeps a journal, as on a kernel that cannot
// resend requests. It must be called while no reads are in flight, because the journal begins
// empty.
func useJournal(t *testing.T, s *site.Site) {
	t.Helper()
	s.Machine.KillNode()
	kept := keeper.Process{Root: s.Machine.NodeRoot()}
	files, note, err := kept.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	empty, err := journal.New()
	if err != nil {
		t.Fatal(err)
	}
	if note, err = journal.Note(note); err != nil {
		t.Fatal(err)
	}
	files = append(files, empty)
	if err := kept.Keep(t.Context(), files, note); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		file.Close()
	}
	if err := s.Machine.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// emptyCaches empties all caches, so that readers need the hub again.
func (d *disturbed) emptyCaches() {
	d.t.Helper()
	if _, err := control.New(d.Machine.NodeRoot()).Prune(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
	if err := site.DropCaches(); err != nil {
		d.t.Fatal(err)
	}
}

// kill kills the daemon with SIGKILL, at a random moment soon after all caches were emptied.
func (d *disturbed) kill() {
	d.t.Helper()
	d.emptyCaches()
	time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
	d.endDaemon(d.Machine.KillNode)
}

// endDaemon ends the daemon with kill, and counts the kill: as a busy one, too, if reads were in
// flight.
func (d *disturbed) endDaemon(kill func()) {
	// Requests that wait after the kill may have arrived after it, and requests that waited before
	// the kill may have been answered before it. So only the smaller number counts.
	before := d.waiting()
	kill()
	inFlight := min(before, d.waiting())
	d.kills++
	if inFlight > 0 {
		d.busyKills++
	}
}

// start starts a daemon, and checks that no reader has failed. lighter is the path of another
// build, or empty.
func (d *disturbed) start(lighter string) {
	d.t.Helper()
	if err := d.Machine.LaunchNode(d.t.Context(), site.Launch{Lighter: lighter}); err != nil {
		d.t.Fatal(err)
	}
	d.whole.check(d.t)
	d.random.check(d.t)
}

// abort ends the FUSE connection, so that all requests in flight fail. Otherwise a process that
// waits for a lost request could not be killed, and sync on this host would hang.
func (d *disturbed) abort() {
	if number, err := mount.Connection(d.Machine.NodeRoot()); err == nil && number != "" {
		_, minor, _ := strings.Cut(number, ":")
		// An error does not matter, because the test has already failed.
		_ = os.WriteFile(filepath.Join(connections(d.t), minor, "abort"), []byte("1"), 0)
	}
}

// waiting returns the number of unanswered requests in the kernel.
func (d *disturbed) waiting() int {
	d.t.Helper()
	number, err := mount.Connection(d.Machine.NodeRoot())
	if err != nil {
		d.t.Fatal(err)
	}
	_, minor, _ := strings.Cut(number, ":")
	text, err := os.ReadFile(filepath.Join(connections(d.t), minor, "waiting"))
	if err != nil {
		d.t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

// connections returns the mount point of fusectl, which has a directory for each FUSE connection.
// It mounts fusectl if necessary.
func connections(t *testing.T) string {
	t.Helper()
	const dir = "/sys/fs/fuse/connections"
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) == 0 {
		err = unix.Mount("fusectl", dir, "fusectl", 0, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// end checks that the site works normally after the disturbances, and that at least half of the
// kills happened while reads were in flight.
func (d *disturbed) end() {
	d.t.Helper()
	d.whole.anotherRound(d.t)
	d.random.check(d.t)
	d.random.stop(d.t)
	if err := d.whole.container.Remove(d.t.Context()); err != nil {
		d.t.Error(err)
	}
	for end := time.Now().Add(patience); d.waiting() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			d.t.Fatalf("%d requests are unanswered %v after the readers' end, want none", d.waiting(), patience)
		}
	}
	if _, err := d.Machine.Run(d.t.Context(), site.Lighter, site.Reference("python"), "python3", "-c",
		"import json"); err != nil {
		d.t.Errorf("a new container after the disturbances: %v", err)
	}
	d.t.Logf("%d kills, %d of them with reads in flight", d.kills, d.busyKills)
	if d.busyKills*2 < d.kills {
		d.t.Errorf("reads were in flight at only %d of %d kills, want at least half", d.busyKills, d.kills)
	}
}

// The daemon is killed, replaced by an older and by a newer one, and containerd is restarted, while
// two containers read. No read fails, hangs or returns wrong bytes.
func TestSoakDaemon(t *testing.T) {
	older, newer := buildOlder(t), buildNewer(t, "99", "1")
	d := disturb(t, site.Options{}, unprepared)
	for i := range times(6, 50) {
		d.kill()
		d.start("")
		if i%max(1, times(6, 50)/times(1, 5)) == 0 {
			if err := d.Machine.RestartContainerd(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	builds := []string{newer, older}
	if older == "" {
		builds = builds[:1]
	}
	for range times(1, 5) {
		for _, build := range builds {
			d.kill()
			d.start(build)
			d.kill()
			d.start("")
		}
	}
	d.end()
}

// A daemon that keeps a journal, as on a kernel that cannot resend requests, is killed. The next
// daemon finds the unanswered requests in the journal. No read fails, hangs or returns wrong bytes.
func TestSoakJournal(t *testing.T) {
	d := disturb(t, site.Options{}, func(s *site.Site) { useJournal(t, s) })
	for range times(4, 20) {
		d.kill()
		d.start("")
	}
	d.end()
}
