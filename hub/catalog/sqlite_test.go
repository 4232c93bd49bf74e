package catalog_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/test/testkit/catalogtest"
	"lighter/wire"
)

func openNew(t *testing.T) *catalog.Catalog {
	t.Helper()
	return catalogtest.Open(t, filepath.Join(t.TempDir(), "catalog ?#.db")) // characters that a URL would escape
}

func TestConformance(t *testing.T) { catalogtest.Test(t, openNew) }

// execute runs SQL in a database file, without package catalog.
func execute(t *testing.T, path, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(query); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// Schema is the number of the last migration, of SQLite and of PostgreSQL.
func TestSchema(t *testing.T) {
	for _, dir := range []string{"migrations/sqlite", "migrations/postgres"} {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		last, want := files[len(files)-1].Name(), fmt.Sprintf("%05d_", catalog.Schema())
		if !strings.HasPrefix(last, want) {
			t.Errorf("the last migration in %s is %s, want one whose name begins with %s", dir, last, want)
		}
	}
}

// A catalog from before the first migration keeps its contents when it is opened, and when it is
// opened again.
func TestCatalogBeforeMigrations(t *testing.T) {
	dump, err := os.ReadFile("testdata/schema-3.sql")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "catalog.db")
	execute(t, path, string(dump))
	for range 2 {
		c := catalogtest.Open(t, path)
		images, err := c.Images(t.Context(), "")
		if err != nil || len(images) != 3 {
			t.Fatalf("%d images, %v, want 3", len(images), err)
		}
		for _, image := range images {
			if chain, err := c.Chain(t.Context(), image.Chain); image.State != wire.StateReady || err != nil ||
				chain.Statement == nil {
				t.Errorf("image %+v: chain %+v (%v), want a ready image with a statement", image, chain, err)
			}
			if _, err := c.Starts.Locations(t.Context(), image.Tree); err != nil {
				t.Errorf("locations of image %s: %v", image.Name, err)
			}
		}
		inventory, err := c.Inventory(t.Context())
		if want := (catalog.Inventory{Images: 3, Layers: 9, Chains: 9, Trees: 3, Packs: 3, Chunks: 16}); err != nil ||
			inventory != want {
			t.Errorf("inventory %+v, %v, want %+v", inventory, err, want)
		}
	}
	c := catalogtest.Open(t, path)
	catalogtest.Publish(t, c, "new", "a", "b")
	if images, err := c.Images(t.Context(), "new"); err != nil || len(images) != 1 ||
		images[0].State != wire.StateReady {
		t.Errorf("a new image: %+v (%v), want one ready image", images, err)
	}
}

// Catalogs of other versions are refused and not changed.
func TestCatalogOfAnotherVersion(t *testing.T) {
	for name, query := range map[string]string{
		"unreleased": `CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
			INSERT INTO meta VALUES ('schema', '2')`,
		"newer": `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, TRUE);
			UPDATE meta SET value = '99' WHERE name = 'oldest'`,
	} {
		path := filepath.Join(t.TempDir(), "catalog.db")
		if name == "newer" {
			c, err := catalog.Open(t.Context(), catalog.Place{Source: path})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		execute(t, path, query)
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err := catalog.Open(t.Context(), catalog.Place{Source: path})
			if name == "newer" && err != nil { // commands that attach to a hub's catalog refuse it, too
				_, err = catalog.Attach(t.Context(), path)
			}
			if err == nil {
				t.Fatalf("%s: opened, want an error", name)
			}
			if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: error %v, want one that names %s and %q", name, err, path, name)
			}
		}
		if after, err := os.ReadFile(path); name == "newer" && (err != nil || !bytes.Equal(after, before)) {
			t.Errorf("%s: the file of the catalog was changed (%v), want the same bytes", name, err)
		}
	}
}

// A catalog that a newer hub has migrated is usable if that hub says so.
func TestCatalogOfANewerHub(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	catalogtest.Publish(t, catalogtest.Open(t, path), "one", "a")
	execute(t, path, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, TRUE)`)
	if images, err := catalogtest.Open(t, path).Images(t.Context(), "one"); err != nil || len(images) != 1 {
		t.Errorf("images %+v, %v, want one", images, err)
	}
}

// A damaged row is an error of the request that reads it, and the hub goes on.
func TestDamagedIDs(t *testing.T) {
	c := openNew(t)
	catalogtest.Publish(t, c, "one", "a")
	tree := catalogtest.TreeOf("a")
	for name, id := range map[string]string{"empty": `x''`, "short": `x'00ff'`, "text": `'a'`} {
		c.Exec(t, `UPDATE layouts SET locations = `+id)
		c.Exec(t, `UPDATE packs SET id = `+id)
		if got, err := c.Starts.Locations(t.Context(), tree); err == nil || !strings.Contains(err.Error(), "want 32") {
			t.Errorf("%s ID: locations %s, %v, want an error", name, got, err)
		}
		if got, err := c.Units(t.Context(), []chunk.ID{chunk.Sum([]byte("a"))}); err == nil {
			t.Errorf("%s ID: units %v, want an error", name, got)
		}
	}
}

// A hub looks up a chain that a node asks about.
func Example() {
	dir, err := os.MkdirTemp("", "catalog-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	c, err := catalog.Open(ctx, catalog.Place{Source: filepath.Join(dir, "catalog.db")})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	// An image is queued under a name, with the job that ingests it. The owner of the job makes the
	// image active, and publishes it with all that belongs to it.
	images, err := c.Name(ctx, "tools/shell:1", []catalog.Image{{Root: "sha256:1", Digest: "sha256:1",
		State: wire.StateQueued}}, catalog.Job{Kind: "image", Key: "tools/shell:1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	job, err := c.Jobs.Claim(ctx, "this process", []catalog.Slot{{Kind: "image"}}, time.Minute)
	if err == nil {
		err = c.Begin(ctx, job.Lease(), images[0].N)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	p := &catalog.Publication{Image: images[0].N, Lease: job.Lease(),
		Blobs:  []catalog.Blob{{Digest: "sha256:2"}, {Digest: "sha256:3", DiffID: "sha256:4", Chain: "sha256:4"}},
		Layers: []catalog.Layer{{DiffID: "sha256:4"}},
	}
	p.Statement = index.Statement{Chain: "sha256:4", Format: index.Format, Signature: make([]byte, 64)}
	if err := c.Publish(ctx, p); err != nil {
		fmt.Println(err)
		return
	}
	chain, err := c.Chain(ctx, "sha256:4")
	fmt.Println(chain.Chain, len(chain.Above), chain.Statement != nil, err)
	// Output: sha256:4 0 true <nil>
}

// After the migration, trees whose layouts were due have jobs, in the order in which they were due.
func TestDueLayoutsBecomeJobs(t *testing.T) {
	dump, err := os.ReadFile("testdata/schema-3.sql")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "catalog.db")
	execute(t, path, string(dump)+`
		UPDATE layouts SET due = 7 WHERE substr(hex(tree), 1, 2) = '7D';
		UPDATE layouts SET due = 5 WHERE substr(hex(tree), 1, 2) = 'F0';`)
	c := catalogtest.Open(t, path)
	numbers := map[int64]bool{}
	for _, want := range []string{"f0", "7d"} {
		j, err := c.Jobs.Claim(t.Context(), "worker", []catalog.Slot{{Kind: catalog.LayoutJob}}, time.Minute)
		if err != nil || len(j.Key) != 64 || j.Key[:2] != want {
			t.Errorf("claimed %+v, %v, want tree %s", j, err, want)
		}
		numbers[j.N] = true
	}
	n, err := c.Jobs.Add(t.Context(), catalog.Job{Kind: "image", Key: "a"}, 0)
	if err != nil || len(numbers) != 2 || numbers[n] {
		t.Errorf("the number of a new job is %d (%v), want another than the numbers %v of two jobs", n, err, numbers)
	}
}

// A running hub ends when a newer hub has made the catalog unusable for it, and not before.
func TestWatchEndsAnOlderHub(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	c := catalogtest.Open(t, path)
	ended := make(chan error, 1)
	go func() { ended <- c.Watch(t.Context(), 10*time.Millisecond, slog.New(slog.DiscardHandler)) }()
	execute(t, path, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)`)
	select {
	case err := <-ended:
		t.Fatalf("Watch returned %v while the catalog is usable, want it to go on", err)
	case <-time.After(200 * time.Millisecond):
	}
	execute(t, path, `UPDATE meta SET value = '99' WHERE name = 'oldest'`)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "start that version") {
		t.Errorf("Watch returned %v, want an error that says what to do", err)
	}
}

// A job runs again if its deletion was slow, or if its claim of objects was lost. Neither error
// says that something is damaged.
func TestErrorsThatJobsRetry(t *testing.T) {
	c := openNew(t)
	storage := away.New("the storage is not available")
	d, may, err := c.Blobs.BeginAny(t.Context(), "slow", 40*time.Millisecond)
	if err != nil || !may {
		t.Fatalf("begin a deletion: %v, %v, want true", may, err)
	}
	err = d.Do(t.Context(), func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", storage, ctx.Err())
	})
	if !errors.Is(err, catalog.ErrSlow) || !away.Is(err) || errors.Is(err, storage) {
		t.Errorf("a slow deletion ended with %v, want ErrSlow only", err)
	}
	err = c.Claims.Extend(t.Context(), catalog.Claim{Owner: "a", Keys: []string{"packs/1"}}, time.Minute)
	if !errors.Is(err, catalog.ErrClaimLost) || !errors.Is(err, catalog.ErrLost) || !away.Is(err) {
		t.Errorf("a claim that was lost: %v, want ErrClaimLost", err)
	}
}
