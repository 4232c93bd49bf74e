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
	"lighter/test/testkit/journal"
	"lighter/test/testkit/site"
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// long reports whether the test runs in `make soak`.
var long = os.Getenv("LIGHTER_SOAK") != ""

// times returns a number of repetitions: short, or soak in `make soak`.
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
	held   int // kills of a daemon with reads in flight
	kills  int
}

// disturb starts a site and its readers. It calls prepare before the first read.
func disturb(t *testing.T, options site.Options, prepare func(*site.Site)) *disturbed {
	t.Helper()
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	// On this slow link there are always reads in flight.
	options.Lighter, options.Link = lighter, "200mbit"
	s, err := site.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	d := &disturbed{Site: s, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			said, _ := os.ReadFile(s.Machine.NodeLog())
			t.Logf("the nodes' log:\n%s", said)
			d.abort()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	work, err := site.Work()
	if err != nil {
		t.Fatal(err)
	}
	layout := filepath.Join(work, "images", "python")
	if err := s.Push(t.Context(), layout, "python"); err != nil {
		t.Fatal(err)
	}
	if err := s.Hub.Add(t.Context(), "python"); err != nil {
		t.Fatal(err)
	}
	data := addData(t, s)
	for _, name := range []string{"python", data} {
		if _, err := s.Machine.Pull(t.Context(), site.Lighter, site.Reference(name)); err != nil {
			t.Fatal(err)
		}
	}
	prepare(s)
	d.whole, d.random = readWhole(t, s, "python", layout), readRandomly(t, s, data)
	return d
}

// unprepared is for disturb without preparations.
func unprepared(*site.Site) {}

// useJournal makes the node keep a journal, as on a kernel that cannot resend requests. No reads
// are in flight.
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

// endDaemon ends the daemon, and counts the kill if it had reads in flight.
func (d *disturbed) endDaemon(kill func()) {
	// Reads that arrive after its end do not count, so the number before its end counts, too.
	before := d.waiting()
	kill()
	held := min(before, d.waiting())
	d.kills++
	if held > 0 {
		d.held++
	}
}

// start starts a daemon of this or another build, and checks that readers make progress.
func (d *disturbed) start(lighter string) {
	d.t.Helper()
	if err := d.Machine.LaunchNode(d.t.Context(), site.Launch{Lighter: lighter}); err != nil {
		d.t.Fatal(err)
	}
	d.whole.check(d.t)
	d.random.check(d.t)
}

// abort fails all requests in flight. A process that waits for a lost request could not be killed,
// and sync on this host would hang.
func (d *disturbed) abort() {
	if number, err := mount.Connection(d.Machine.NodeRoot()); err == nil && number != "" {
		_, minor, _ := strings.Cut(number, ":")
		// an error does not matter: the test has already failed
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

// connections returns the mount point of fusectl, which shows the FUSE connections.
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

// end checks that the site works normally after the disturbances.
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
			d.t.Fatalf("%d requests hang", d.waiting())
		}
	}
	if _, err := d.Machine.Run(d.t.Context(), site.Lighter, site.Reference("python"), "python3", "-c",
		"import json"); err != nil {
		d.t.Errorf("a new container: %v", err)
	}
	d.t.Logf("%d kills, %d of them with reads in flight", d.kills, d.held)
	if d.held*2 < d.kills {
		d.t.Errorf("only %d of %d kills were with reads in flight, want more", d.held,
			d.kills)
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
	others := []string{newer, older}
	if older == "" {
		others = others[:1]
	}
	for range times(1, 5) {
		for _, other := range others {
			d.kill()
			d.start(other)
			d.kill()
			d.start("")
		}
	}
	d.end()
}

// On a kernel that cannot resend, the requests that a killed daemon had received are in a journal.
func TestSoakJournal(t *testing.T) {
	d := disturb(t, site.Options{}, func(s *site.Site) { useJournal(t, s) })
	for range times(4, 20) {
		d.kill()
		d.start("")
	}
	d.end()
}
