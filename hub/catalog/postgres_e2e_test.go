//go:build e2e

package catalog_test

import (
	"context"
	"crypto/ed25519"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/test/testkit/catalogtest"
	"lighter/test/testkit/postgres"
	"lighter/wire"
)

func TestConformanceOfPostgres(t *testing.T) {
	server := postgres.Start(t)
	catalogtest.Test(t, func(t *testing.T) *catalog.Catalog { return catalogtest.Open(t, server.Database(t)) })
}

// A catalog in a schema of its own keeps the contract, also with the fewest connections.
func TestConformanceOfSchemas(t *testing.T) {
	server := postgres.Start(t)
	const sharing = 64
	catalogtest.Test(t, func(t *testing.T) *catalog.Catalog {
		return catalogtest.OpenAt(t, catalog.Place{Source: server.Database(t), Schema: "domain_a", Sharing: sharing})
	})
}

// A database that does not store UTF-8 is refused before anything is made in it.
func TestEncodingOfPostgres(t *testing.T) {
	server := postgres.Start(t)
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		name := "encoded_" + strings.ToLower(encoding)
		source, err := url.Parse(server.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		server.Execute(t, source.String(),
			`CREATE DATABASE `+name+` ENCODING '`+encoding+`' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
		source.Path = name
		c, err := catalog.Open(t.Context(), catalog.Place{Source: source.String(), Schema: "domain_a"})
		if err == nil {
			err = c.Close()
			t.Errorf("a database with the encoding %s was opened (%v)", encoding, err)
		} else if !strings.Contains(err.Error(), "has the encoding "+encoding+", want UTF8: make another one") {
			t.Errorf("a database with the encoding %s: %v, want an error that names it", encoding, err)
		}
		server.Execute(t, source.String(), `CREATE SCHEMA domain_a`) // fails if there is one
	}
}

func TestMemoryOfHighNumbersOfPostgres(t *testing.T) {
	highNumbers(t, catalogtest.Open(t, postgres.Start(t).Database(t)))
}

func TestSizesOfTwoProcessesOfPostgres(t *testing.T) {
	sizesOfTwoProcesses(t, postgres.Start(t).Database(t))
}

// Several processes may make the schemas of one database at the same time. What is in one schema is
// in no other, and not in the default schema.
func TestSchemasShareNothing(t *testing.T) {
	server := postgres.Start(t)
	source := server.Database(t)
	schemas := []string{"", "domain_a", "domain_b"}
	opened := make([]*catalog.Catalog, 2*len(schemas))
	var work sync.WaitGroup
	for i := range opened {
		work.Go(func() {
			var err error
			opened[i], err = catalog.Open(t.Context(), catalog.Place{Source: source, Schema: schemas[i%len(schemas)]})
			if err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if t.Failed() {
		return
	}
	for _, c := range opened {
		defer c.Close()
	}
	catalogtest.Publish(t, opened[1], "a:1", "layer")
	for i, c := range opened {
		images, err := c.Images(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		has, err := c.HasTree(t.Context(), catalogtest.TreeOf("layer"))
		if want := schemas[i%len(schemas)] == "domain_a"; err != nil || has != want || (len(images) == 1) != want {
			t.Errorf("schema %q has %d images, and the tree: %v (%v), want %v", schemas[i%len(schemas)], len(images),
				has, err, want)
		}
	}
}

// What users are told of an error does not name the database's host or user.
func TestReasonsNameNoDatabase(t *testing.T) {
	server := postgres.Start(t)
	at, err := url.Parse(server.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	at.User = url.UserPassword(at.User.Username(), "wrong")
	_, refused := catalog.Open(t.Context(), catalog.Place{Source: at.String()})
	at.Host = "127.0.0.1:1"
	_, away := catalog.Open(t.Context(), catalog.Place{Source: at.String()})
	for what, err := range map[string]error{"wrong password": refused, "no server": away} {
		if catalog.IsAway(err) != (what == "no server") {
			t.Errorf("%s: error %v is ErrAway: %v, want the opposite", what, err, catalog.IsAway(err))
		}
		err := errors.Unwrap(err) // without the URL, which is the administrator's
		if !strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%s: the error for the log is %v, want the host in it", what, err)
		}
		reason := report.Reason(err)
		if strings.Contains(reason, "127.0.0.1") || strings.Contains(reason, "user") ||
			!strings.Contains(reason, "database") {
			t.Errorf("%s: the reason is %q, want the database in it, and neither host nor user", what, reason)
		}
	}
}

// Pushes of a name and the work on its images lock rows in the same order, and so never wait for
// the detection of a deadlock, which takes a second.
func TestNoDeadlock(t *testing.T) {
	server := postgres.Start(t)
	c := catalogtest.Open(t, server.Database(t))
	ctx := t.Context()
	name := func(root string) error {
		image := catalog.Image{Root: root, Digest: root, State: wire.StateQueued}
		_, err := c.Name(ctx, "a", []catalog.Image{image}, catalog.Job{Kind: "image", Key: "a", Root: root})
		return err
	}
	var work sync.WaitGroup
	end := time.Now().Add(5 * time.Second)
	work.Go(func() {
		for i := 0; time.Now().Before(end); i++ {
			err := name(fmt.Sprint(i % 2))
			if i%7 == 0 {
				err = errors.Join(err, c.Remove(ctx, "image", "a", ""))
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	work.Go(func() {
		for time.Now().Before(end) {
			j, err := c.Jobs.Claim(ctx, "worker", []catalog.Slot{{Kind: "image"}}, time.Minute)
			if errors.Is(err, catalog.ErrNotFound) {
				continue
			}
			images, listErr := c.Images(ctx, "a")
			if err := errors.Join(err, listErr); err != nil {
				t.Error(err)
				return
			}
			for _, image := range images {
				_ = c.Begin(ctx, j.Lease(), image.N) // it may have changed
				_ = c.NameAs(ctx, j.Lease(), "a", images)
				_ = c.End(ctx, j.Lease(), image.N, wire.StateStored, "")
			}
			if _, err := c.Jobs.End(ctx, j.Lease(), catalog.Outcome{State: wire.JobFailed, Error: "test"}); err != nil {
				t.Error(err)
			}
		}
	})
	work.Wait()
	if found, err := server.Deadlocks(); found != "" || err != nil {
		t.Errorf("deadlocks of the server (%v), want none:\n%s", err, found)
	}
}

// Clients that rely on blobs, and processes that delete the same blobs in batches, lock rows in the
// same order.
func TestNoDeadlockOfDeletions(t *testing.T) {
	server := postgres.Start(t)
	c := catalogtest.Open(t, server.Database(t))
	ctx := t.Context()
	var work sync.WaitGroup
	end := time.Now().Add(5 * time.Second)
	for i := range 4 {
		random := rand.New(rand.NewPCG(0, uint64(i)))
		work.Go(func() {
			for time.Now().Before(end) {
				var digests []string
				for _, n := range random.Perm(40)[:20] {
					digests = append(digests, fmt.Sprint(n))
				}
				if i < 2 {
					if err := c.Blobs.Touch(ctx, digests, 0); err != nil && !errors.Is(err, catalog.ErrDeleting) {
						t.Error(err)
					}
					continue
				}
				d, err := c.Blobs.BeginAll(ctx, digests, time.Now().Add(time.Hour), time.Minute)
				if err = errors.Join(err, c.Blobs.End(ctx, d)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	if found, err := server.Deadlocks(); found != "" || err != nil {
		t.Errorf("deadlocks of the server (%v), want none:\n%s", err, found)
	}
}

// Transactions that add the same new job, and other rows before it, do not block each other for
// ever.
func TestNoDeadlockOfNewJobs(t *testing.T) {
	server := postgres.Start(t)
	source := server.Database(t)
	c := catalogtest.Open(t, source)
	catalogtest.Publish(t, c, "a:1", "layer")
	tree := catalogtest.TreeOf("layer")
	trace := func() error { return c.Starts.AddTrace(t.Context(), tree, "sender", []byte("a trace"), 0) }
	add := func() error {
		_, err := c.Jobs.Add(t.Context(), catalog.Job{Kind: catalog.LayoutJob, Key: tree.String()}, 0)
		return err
	}
	if err := trace(); err != nil { // there is a number of traces
		t.Fatal(err)
	}
	tx := begin(t, source, `DELETE FROM jobs WHERE kind = 'layout'`)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}

	tx = begin(t, source, `SELECT * FROM numbers WHERE name = 'traces' FOR UPDATE`)
	var work sync.WaitGroup
	started, ended := 0, make(chan error, 3)
	for _, do := range []func() error{trace, add, trace} {
		work.Go(func() { ended <- do() })
		started++
		for waiting := 0; waiting+len(ended) < started; time.Sleep(10 * time.Millisecond) {
			if err := tx.QueryRow(`SELECT COUNT(DISTINCT pid) FROM pg_locks WHERE NOT granted`).Scan(&waiting); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	work.Wait()
	if err := errors.Join(<-ended, <-ended, <-ended); err != nil {
		t.Error(err)
	}
	if found, err := server.Deadlocks(); found != "" || err != nil {
		t.Errorf("deadlocks of the server (%v), want none:\n%s", err, found)
	}
}

// Publications that find at the same time that another process has signed with other keys do not
// wait for each other.
func TestNoDeadlockOfPublications(t *testing.T) {
	server := postgres.Start(t)
	source := server.Database(t)
	c := catalogtest.Open(t, source)
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	for round := range 4 {
		if err := c.Resign(t.Context(), []ed25519.PrivateKey{key}); err != nil {
			t.Fatal(err)
		}
		// The other process has our key, too.
		tx := begin(t, source, `UPDATE meta SET value = 'other ' || value WHERE name = 'keys'`)
		var work sync.WaitGroup
		const together = 4
		for n := range together {
			work.Go(func() { catalogtest.Publish(t, c, fmt.Sprintf("%d:%d", round, n), fmt.Sprint("layer", round, n)) })
			for waiting := 0; waiting <= n; time.Sleep(10 * time.Millisecond) {
				err := tx.QueryRow(`SELECT COUNT(DISTINCT pid) FROM pg_locks WHERE NOT granted`).Scan(&waiting)
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		work.Wait()
	}
	keys := ""
	if err := begin(t, source).QueryRow(`SELECT value FROM meta WHERE name = 'keys'`).Scan(&keys); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(keys, "other ") || !strings.HasSuffix(keys, " +") || strings.Contains(keys, "+ +") {
		t.Errorf("the keys that have signed are %q, want them marked once", keys)
	}
	if found, err := server.Deadlocks(); found != "" || err != nil {
		t.Errorf("deadlocks of the server (%v), want none:\n%s", err, found)
	}
}

// begin begins a transaction of another process, which executes the statements.
func begin(t *testing.T, source string, statements ...string) *sql.Tx {
	t.Helper()
	db, err := sql.Open("pgx", source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	tx, err := db.Begin()
	for _, statement := range statements {
		if err == nil {
			_, err = tx.Exec(statement)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// whileLocked calls work. When work waits for a lock, or has ended, whileLocked calls then, and
// commits tx. It returns when work has ended.
func whileLocked(t *testing.T, tx *sql.Tx, work func() error, then func(*sql.Tx) error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- work() }()
	for waiting, over := 0, false; waiting == 0 && !over; time.Sleep(10 * time.Millisecond) {
		over = len(ended) > 0
		if err := tx.QueryRow(`SELECT COUNT(*) FROM pg_locks WHERE NOT granted`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(then(tx), tx.Commit(), <-ended); err != nil {
		t.Error(err)
	}
}

// A job that is added again waits for its row before it reserves a number, as pushes do.
func TestAddedJobBlocksNoNumbers(t *testing.T) {
	server := postgres.Start(t)
	source := server.Database(t)
	c := catalogtest.Open(t, source)
	add := func() error {
		_, err := c.Jobs.Add(t.Context(), catalog.Job{Kind: "image", Key: "a"}, 0)
		return err
	}
	if err := add(); err != nil {
		t.Fatal(err)
	}
	push := begin(t, source, `SELECT n FROM jobs WHERE key = 'a' FOR UPDATE`)
	whileLocked(t, push, add, func(tx *sql.Tx) error {
		_, err := tx.Exec(`SELECT last FROM numbers WHERE name = 'jobs' FOR UPDATE NOWAIT`)
		return err
	})
}

// A collection removes a tree while a node reports that it has it: the answer names the tree as
// unknown.
func TestTreeThatGoesIsNotHeld(t *testing.T) {
	server := postgres.Start(t)
	source := server.Database(t)
	c := catalogtest.Open(t, source)
	catalogtest.Publish(t, c, "one", "a")
	tree := catalogtest.TreeOf("a")
	collection := begin(t, source, `UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT)
		WHERE name = 'collections'`)
	var unknown []chunk.ID
	whileLocked(t, collection, func() (err error) {
		done, err := c.Holders.SetHeld(t.Context(), catalog.Holder{ID: "n", Kind: "node"}, []chunk.ID{tree},
			catalog.HeldBounds{Holders: 1, Trees: 1})
		unknown = done.Unknown
		return err
	}, func(tx *sql.Tx) error {
		for _, table := range []string{"formers", "layouts", "statements", "trees"} {
			if _, err := tx.Exec(`DELETE FROM `+table+` WHERE tree = $1`, tree[:]); err != nil {
				return err
			}
		}
		return nil
	})
	if len(unknown) != 1 {
		t.Errorf("unknown trees: %v, want the one that was removed", unknown)
	}
}

// A process that is stopped in a transaction blocks its own job for a while, but no other job of
// the queue.
func TestLockedJobBlocksNoQueue(t *testing.T) {
	server := postgres.Start(t)
	source := server.Database(t)
	c := catalogtest.Open(t, source)
	for _, key := range []string{"a", "b"} {
		if _, err := c.Jobs.Add(t.Context(), catalog.Job{Kind: "image", Key: key}, 0); err != nil {
			t.Fatal(err)
		}
	}
	claim := func() string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		j, err := c.Jobs.Claim(ctx, "worker", []catalog.Slot{{Kind: "image"}}, -time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return j.Key
	}
	if key := claim(); key != "a" {
		t.Fatalf("claimed %s, want a", key)
	}
	stopped, err := sql.Open("pgx", source)
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	tx, err := stopped.Begin()
	if err == nil {
		_, err = tx.Exec(`UPDATE jobs SET updated = updated WHERE key = 'a'`)
	}
	if err != nil {
		t.Fatal(err)
	}
	if key := claim(); key != "b" {
		t.Errorf("claimed %s while a is locked, want b", key)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if key := claim(); key != "a" {
		t.Errorf("claimed %s, want a again", key)
	}
}

// A hub whose schema is older than oldest refuses the database and changes nothing; others may use
// it.
func TestPostgresOfANewerHub(t *testing.T) {
	server := postgres.Start(t)
	source := server.Database(t)
	catalogtest.Publish(t, catalogtest.Open(t, source), "one", "a")
	db, err := sql.Open("pgx", source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	change := func(query string) {
		t.Helper()
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	state := func() (all string) {
		t.Helper()
		if err := db.QueryRow(`SELECT (SELECT string_agg(CAST(m AS TEXT), ' ' ORDER BY name) FROM meta m) ||
			(SELECT string_agg(CAST(v AS TEXT), ' ' ORDER BY id) FROM goose_db_version v) ||
			(SELECT string_agg(table_name || column_name, ' ' ORDER BY table_name, column_name)
				FROM information_schema.columns WHERE table_schema = 'public')`).Scan(&all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	oldest := ""
	if err := db.QueryRow(`SELECT value FROM meta WHERE name = 'oldest'`).Scan(&oldest); err != nil {
		t.Fatal(err)
	}
	change(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, TRUE)`)
	change(`UPDATE meta SET value = '99' WHERE name = 'oldest'`)
	before := state()
	_, err = catalog.Open(t.Context(), catalog.Place{Source: source})
	if err == nil || !strings.Contains(err.Error(), "newer hub") {
		t.Errorf("open a catalog for newer hubs only: error %v, want one that names a newer hub", err)
	}
	if after := state(); after != before {
		t.Errorf("the database was changed:\n%s\nwant\n%s", after, before)
	}
	change(`UPDATE meta SET value = '` + oldest + `' WHERE name = 'oldest'`)
	if images, err := catalogtest.Open(t, source).Images(t.Context(), "one"); err != nil || len(images) != 1 {
		t.Errorf("images %+v, %v, want one", images, err)
	}
}
