//go:build e2e

package hubs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/postgres"
	"lighter/test/testkit/s3"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/wire"
)

// database and storage are the PostgreSQL server and the S3 server that all tests share.
var (
	database *postgres.Server
	storage  *s3.Server
)

func TestMain(m *testing.M) { os.Exit(site.EnclosedWith(prepare, m.Run)) }

func prepare() (stop func() error, err error) {
	if database, err = postgres.New(postgres.NoSync); err != nil {
		return nil, err
	}
	if storage, err = s3.New(); err != nil {
		database.Close()
		return nil, err
	}
	return func() error { storage.Close(); database.Close(); return nil }, nil
}

// collectsAtOnce is the configuration of a hub that collects only on request. Its collections free
// at once everything that no image and no holder needs.
const collectsAtOnce = `[gc]
every_minutes = 0
delay_minutes = 0
keep_minutes = 0
`

// start starts a site. config is the text of the hub's configuration file. The node reports its
// trees within seconds after they change.
func start(t *testing.T, options site.Options, config string) *site.Site {
	t.Helper()
	var err error
	if options.Lighter, err = site.Binary(); err != nil {
		t.Fatal(err)
	}
	options.HubArgs = []string{"--config", configFile(t, config)}
	// Without recordings, startup packs have none of the files that the tests read.
	options.NodeArgs = append(options.NodeArgs, "--held-delay", "1s", "--record=false")
	s, err := site.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, path := range []string{s.Machine.NodeLog(), s.Hub.Log()} {
				log, _ := os.ReadFile(path) // for information only
				t.Logf("%s:\n%s", filepath.Base(path), log)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// configFile writes a hub's configuration, which also allows the site's registry.
func configFile(t *testing.T, config string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hub.toml")
	if err := os.WriteFile(file, []byte(config+site.RegistryTable), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// fileBytes is the size of each file in the directory data. A file fills several units, so at least
// one unit has no bytes of another file: a read of the file fetches this unit.
const fileBytes = 300_000

// content returns the bytes of file n in the directory data.
func content(n int) []byte {
	var seed [32]byte
	copy(seed[:], fmt.Sprint("file ", n))
	b := make([]byte, fileBytes)
	_, _ = rand.NewChaCha8(seed).Read(b) // it never fails
	return b
}

// image makes an OCI layout of the image base with another layer, which has the files first to
// end-1 in the directory data.
func image(t *testing.T, first, end int) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "layout")
	err := layout.Extend(images.Dir("base"), dir, func(l *layout.Layer) error {
		err := l.Dir("data")
		for n := first; n < end; n++ {
			err = errors.Join(err, l.File(fmt.Sprintf("data/%03d", n), content(n)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// add pushes an image to the site's registry, and adds it to the hub from there.
func add(t *testing.T, s *site.Site, layout, name string) {
	t.Helper()
	if err := errors.Join(s.Push(t.Context(), layout, name), s.Hub.Add(t.Context(), name)); err != nil {
		t.Fatal(err)
	}
}

// run pulls an image, which must be lazy, and starts a container of it that only waits.
func run(t *testing.T, s *site.Site, ref string) *site.Container {
	t.Helper()
	if _, err := s.Machine.Pull(t.Context(), site.Lighter, ref); err != nil {
		t.Fatal(err)
	}
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, ref, "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range sitetest.Status(t, s).Images {
		if i.Image == ref && !i.Lazy {
			t.Fatalf("%s is not lazy: %s", ref, i.Why)
		}
	}
	return c
}

// reads fails the test unless a container reads the right bytes from the files first to end-1 in
// the directory data.
func reads(t *testing.T, c *site.Container, first, end int) {
	t.Helper()
	if err := read(t, c, first, end); err != nil {
		t.Fatal(err)
	}
}

// read does what reads does, and returns an error instead of failing the test.
func read(t *testing.T, c *site.Container, first, end int) error {
	t.Helper()
	sum := sha256.New()
	for n := first; n < end; n++ {
		sum.Write(content(n))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	files := fmt.Sprintf("for n in $(seq -f %%03g %d %d); do cat /data/$n", first, end-1)
	got, err := c.Exec(ctx, "sh", "-c", files+" >/dev/null || exit 1; done; "+files+"; done | sha256sum")
	if err != nil {
		return fmt.Errorf("read files %d to %d: %w", first, end-1, err)
	}
	if want := hex.EncodeToString(sum.Sum(nil)) + "  -\n"; got != want {
		return fmt.Errorf("files %d to %d have the digest %q, want %q", first, end-1, got, want)
	}
	return nil
}

// forget empties the node's cache and the page cache.
func forget(t *testing.T, s *site.Site) {
	t.Helper()
	if _, err := s.Machine.Lighter(t.Context(), "cache", "prune"); err != nil {
		t.Fatal(err)
	}
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
}

// hubCommand runs a lighter command against a hub, and returns its output. The command must
// succeed.
func hubCommand(t *testing.T, h *site.Hub, command string, args ...string) string {
	t.Helper()
	out, err := h.Lighter(t.Context(), command, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// hubJSON runs a lighter command with --json against a hub, and decodes its output.
func hubJSON[T any](t *testing.T, h *site.Hub, command string, args ...string) (answer T) {
	t.Helper()
	return jsonOf[T](t, hubCommand(t, h, command, append(args, "--json")...))
}

// jsonOf decodes JSON.
func jsonOf[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// holder waits until a hub has exactly one holder and ok accepts it, and returns this holder.
func holder(t *testing.T, h *site.Hub, what string, ok func(wire.Holder) bool) (found wire.Holder) {
	t.Helper()
	eventually.Holds(t, "a holder with "+what, func() bool {
		all := hubJSON[[]wire.Holder](t, h, "holders")
		if len(all) > 1 {
			t.Fatalf("the hub has the holders %+v, want one at most", all)
		}
		if len(all) == 1 {
			found = all[0]
		}
		return len(all) == 1 && ok(found)
	})
	return found
}

// collect runs a collection in the site's domain, and returns its result.
func collect(t *testing.T, h *site.Hub) wire.Collection {
	t.Helper()
	return hubJSON[wire.Collection](t, h, "gc --wait")
}

// isReady reports whether the hub has an image with a name, and the image is ready. It fails the
// test if the image could not be ingested.
func isReady(t *testing.T, h *site.Hub, name string, flags ...string) bool {
	t.Helper()
	for _, i := range hubJSON[[]wire.Image](t, h, "images", flags...) {
		if i.Name == name {
			if i.State == wire.StateFailed {
				t.Fatalf("the hub could not ingest %s: %s", name, i.Error)
			}
			return i.State == wire.StateReady
		}
	}
	return false
}

// lines returns the lines of a file that contain all words.
func lines(t *testing.T, path string, words ...string) (found []string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
next:
	for line := range strings.Lines(string(b)) {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue next
			}
		}
		found = append(found, strings.TrimSpace(line))
	}
	return found
}
