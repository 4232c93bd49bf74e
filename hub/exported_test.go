package hub_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/hub/export"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// newMirror returns the place of a new mirror, and the directory with its files. The tests of the
// tag e2e set it to a bucket, whose server stores an object as a file.
var newMirror = func(t *testing.T) (to, dir string) {
	dir = filepath.Join(t.TempDir(), "mirror")
	return dir, dir
}

// exportsTo makes a hub keep a mirror.
func exportsTo(to string) func(*hub.Config) { return func(c *hub.Config) { c.Export.To = to } }

// export brings the hub's mirror up to date.
func (h *testHub) export() {
	h.t.Helper()
	before, err := h.Exporter().Counts(h.t.Context())
	if err == nil {
		err = h.Exporter().Start(h.t.Context())
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.exported()
	after, err := h.Exporter().Counts(h.t.Context())
	if err != nil || !after.Completed.After(before.Completed) || after.Errors != before.Errors {
		h.t.Errorf("the mirror is not up to date: %+v, %v", after, err)
	}
}

// exported waits until no job exports.
func (h *testHub) exported() {
	h.t.Helper()
	for range 3000 {
		if _, err := h.Catalog().Jobs.Open(h.t.Context(), export.JobKind, "all"); errors.Is(err, catalog.ErrNotFound) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.t.Fatal("timeout: the export does not end")
}

// mirrored has the files of one domain of a mirror: their paths below /lighter/1/DOMAIN by kind and
// name.
type mirrored map[string]map[string]string

// readMirror reads the mirror in a directory. Each file must be what its name says, and what it
// names must be there.
func readMirror(t *testing.T, dir string) mirrored {
	t.Helper()
	top := filepath.Join(dir, wire.Prefix, wire.DefaultDomain)
	found := mirrored{}
	for _, kind := range []string{"chains", "manifests", "trees", "indexes", "locations", "packs"} {
		found[kind] = map[string]string{}
		entries, err := os.ReadDir(filepath.Join(top, kind))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			found[kind][e.Name()] = filepath.Join(top, kind, e.Name())
		}
	}
	wants := func(by, kind, name string) {
		t.Helper()
		if found[kind][name] == "" {
			t.Errorf("%s names %s of %s, which the mirror does not have", by, name, kind)
		}
	}
	names := func(by string, s *index.Statement) {
		t.Helper()
		if s != nil {
			wants(by, "indexes", s.Tree.String())
			wants(by, "trees", s.Chain)
		}
	}
	for _, file := range found["chains"] {
		answer := decoded[wire.Chain](t, file)
		for _, link := range append(answer.Above, answer.Link) {
			names(file, link.Statement)
		}
	}
	for _, file := range found["manifests"] {
		names(file, decoded[wire.Manifest](t, file).Statement)
	}
	for _, file := range found["trees"] {
		wants(file, "indexes", decoded[index.Statement](t, file).Tree.String())
	}
	for name, file := range found["indexes"] {
		plain := bytes.NewReader(plainOf(t, file))
		if _, err := index.Receive(plain, treeOf(t, name), io.Discard, io.Discard); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		wants(file, "locations", name)
	}
	for name, file := range found["locations"] {
		plain := plainOf(t, file)
		locations, err := index.OpenLocations(bytes.NewReader(plain), int64(len(plain)), treeOf(t, name), -1)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		_ = locations.Each(func(_ int64, u chunk.Unit) error {
			wants(file, "packs", u.Pack.String())
			if b, err := os.ReadFile(filepath.Join(top, "packs", u.String())); err != nil || !isUnit(b) {
				t.Errorf("%s names unit %s: %v, want a whole unit", file, u, err)
			}
			return nil
		})
	}
	return found
}

func isUnit(b []byte) bool {
	unit, err := pack.DecodeUnit(b)
	if err != nil {
		return false
	}
	for i := range unit.Len() {
		if _, err := unit.Chunk(i); err != nil {
			return false
		}
	}
	return true
}

func decoded[T any](t *testing.T, file string) (v T) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		t.Errorf("%s: %v", file, err)
	}
	return v
}

func plainOf(t *testing.T, file string) []byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := compress.ReadCloser(f)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Errorf("%s: %v", file, err)
	}
	return plain
}

// treeOf parses a tree ID.
func treeOf(t *testing.T, text string) chunk.ID {
	t.Helper()
	id, err := chunk.ParseID(text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// count returns the number of files of each kind.
func (m mirrored) count() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprint(kind, "=", len(m[kind])))
	}
	return strings.Join(parts, " ")
}

// The mirror that a hub keeps has what nodes need of all images, follows new locations, and does
// not write what it has. The names of a removed image go at once. Its trees and packs stay until
// the hub deletes them. Then the mirror is as if the image had never been there.
func TestExport(t *testing.T) {
	t.Parallel()
	to, dir := newMirror(t)
	h := startHub(t, exportsTo(to))
	h.Collector().Keep = 0
	a := h.laid("a:1", image(lowerTar, upperTar))
	h.export()
	before := readMirror(t, dir)
	web := serveFiles(t, dir)
	lower := digest.FromBytes(lowerTar).String()
	for _, chain := range []string{lower, a.Chain} {
		want, chunks := h.fetchTree(chain)
		got, copied := fetchTree(t, web, chain, false)
		if got != want || !maps.EqualFunc(chunks, copied, slices.Equal) {
			t.Errorf("chain %s: %+v in the mirror, want %+v as on the hub", chain, got, want)
		}
	}

	written := int64(0)
	h.Exporter().Step = func(path string) error {
		if !strings.HasPrefix(path, "/.export/") {
			atomic.AddInt64(&written, 1)
		}
		return nil
	}
	h.export()
	if written > 0 {
		t.Errorf("%d files were written though nothing has changed, want 0", written)
	}

	// The daily look finds what somebody has removed.
	for _, file := range []string{before["indexes"][a.Tree], before["chains"][a.Chain],
		slices.Collect(maps.Values(before["packs"]))[0]} {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
	h.Exporter().CheckEvery = 0
	h.export()
	h.Exporter().CheckEvery = 24 * time.Hour
	if got := readMirror(t, dir); got.count() != before.count() {
		t.Errorf("after files were removed: %s, want %s", got.count(), before.count())
	}

	third := tarball.Of(tarball.File("third", noise(4, 200_000)))
	b := h.laid("b:1", image(lowerTar, third))
	h.export()
	m := h.extents(b.Tree)
	h.traced(m, 0)
	h.await(treeOf(t, b.Tree))
	h.export()
	now, hub := originsOf(t, web), h.origins()
	if got, want := fetchLocations(t, now, m.Header), fetchLocations(t, hub, m.Header); len(want.Startups()) == 0 ||
		len(got.Startups()) != len(want.Startups()) {
		t.Errorf("after a trace the mirror's locations have %d startup packs, want %d, as on the hub",
			len(got.Startups()), len(want.Startups()))
	}
	both := readMirror(t, dir)
	if got := len(both["manifests"]); got != 2 {
		t.Errorf("%d manifests, want 2", got)
	}

	h.remove("b:1")
	h.export()
	removed := readMirror(t, dir)
	if removed["chains"][b.Chain] != "" || removed["manifests"][b.Digest] != "" ||
		removed["indexes"][b.Tree] == "" || len(removed["packs"]) != len(both["packs"]) {
		t.Errorf("after the removal of b: %s, want only its names gone, of %s", removed.count(), both.count())
	}
	h.collect(0)
	h.export()
	if got := readMirror(t, dir); got["indexes"][b.Tree] != "" || len(got["packs"]) >= len(both["packs"]) {
		t.Errorf("after the collection: %s, want less than %s", got.count(), both.count())
	}
	h.remove("a:1")
	h.collect(0)
	h.export() // releases what the mirror held
	h.collect(0)
	h.export()
	if got := readMirror(t, dir); got.count() != "chains=0 indexes=0 locations=0 manifests=0 packs=0 trees=0" {
		t.Errorf("without images: %s, want nothing; at first there were %s", got.count(), before.count())
	}
}

// An image for which no client waits is in the mirror soon: somebody has pushed it, or it has come
// by itself.
func TestExportOfANewImage(t *testing.T) {
	t.Parallel()
	to, dir := newMirror(t)
	h := startHub(t, exportsTo(to))
	h.exported() // the run that the start has begun
	h.Exporter().NewDelay = time.Millisecond
	h.push("a:1", image(lowerTar, upperTar))
	eventually.Holds(t, "the image in the mirror", func() bool { return len(readMirror(t, dir)["manifests"]) == 1 })
}

// An image that is ready when a run has looked at all images, and has not ended yet, is in the
// mirror soon, too.
func TestExportOfAnImageAtTheEndOfARun(t *testing.T) {
	t.Parallel()
	to, dir := newMirror(t)
	h := startHub(t, exportsTo(to))
	h.exported()
	h.Exporter().NewDelay = time.Millisecond
	looked, goOn := make(chan struct{}), make(chan struct{})
	h.Exporter().Log = slog.New(saying{slog.DiscardHandler, "the mirror was changed", sync.OnceFunc(func() {
		close(looked)
		<-goOn
	})})
	h.push("a:1", image(lowerTar, upperTar))
	<-looked
	h.push("b:1", image(lowerTar))
	h.ready("b:1")
	close(goOn)
	eventually.Holds(t, "the image in the mirror", func() bool { return len(readMirror(t, dir)["manifests"]) == 2 })
}

// saying is a slog.Handler that calls a function for a message.
type saying struct {
	slog.Handler
	message string
	said    func()
}

func (s saying) Enabled(context.Context, slog.Level) bool { return true }

func (s saying) Handle(_ context.Context, r slog.Record) error {
	if r.Message == s.message {
		s.said()
	}
	return nil
}

// A hub that was started with another database, without images, leaves the mirror as it is, and
// says why. With the right one, the mirror is kept up to date again.
func TestExportOfAnotherCatalog(t *testing.T) {
	t.Parallel()
	to, dir := newMirror(t)
	h := startHub(t, exportsTo(to))
	h.laid("a:1", image(lowerTar, upperTar))
	h.export()
	before := readMirror(t, dir)
	h.stop()

	other := startHub(t, exportsTo(to))
	if err := other.Exporter().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	other.exported()
	jobs, err := other.client.Jobs(t.Context(), true)
	if err != nil || !slices.ContainsFunc(jobs, func(j wire.Job) bool {
		return j.Kind == export.JobKind && strings.Contains(j.Error, "copy of another catalog")
	}) {
		t.Errorf("jobs %+v, %v; want that the export says why it has done nothing", jobs, err)
	}
	if got := readMirror(t, dir); got.count() != before.count() {
		t.Errorf("after a run with another database: %s, want %s", got.count(), before.count())
	}
	other.stop()

	h = h.restart()
	h.remove("a:1")
	// A run that the restart has begun may still be one of before the removal.
	eventually.Holds(t, "the mirror without names", func() bool {
		if err := h.Exporter().Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.exported()
		return len(readMirror(t, dir)["manifests"]) == 0
	})
}

// After a run that was killed before any one of its writes and removals, the mirror lacks files at
// most. The next run completes it, and finds what the killed one has left.
func TestExportIsKilled(t *testing.T) {
	t.Parallel()
	to, dir := newMirror(t)
	h := startHub(t, exportsTo(to))
	h.Collector().Keep = 0
	killed := errors.New("killed")
	var left atomic.Int64 // writes and removals until the run is killed
	h.Exporter().Step = func(string) error {
		if left.Add(-1) <= 0 {
			return killed
		}
		return nil
	}
	h.laid("a:1", image(lowerTar, upperTar))
	settle := func(what string) string {
		t.Helper()
		for n := int64(1); ; n++ {
			h.exported()
			left.Store(n)
			if err := h.Exporter().Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.exported()
			got := readMirror(t, dir)
			if left.Load() > 0 { // it was not killed
				left.Store(1 << 30)
				h.export()
				return readMirror(t, dir).count()
			}
			if n > 200 {
				t.Fatalf("%s: the mirror is never complete: %s", what, got.count())
			}
		}
	}
	if got := settle("an image was added"); !strings.Contains(got, "manifests=1") {
		t.Errorf("with an image: %s, want its manifest", got)
	}
	h.remove("a:1")
	h.collect(0)
	settle("an image was removed")
	h.collect(0)
	if got := settle("the hub has nothing"); got != "chains=0 indexes=0 locations=0 manifests=0 packs=0 trees=0" {
		t.Errorf("without images: %s, want nothing", got)
	}
}
