//go:build e2e

package catalog_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

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

// What users are told of an error does not name the database's host or user.
func TestReasonsNameNoDatabase(t *testing.T) {
	server := postgres.Start(t)
	at, err := url.Parse(server.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	at.User = url.UserPassword(at.User.Username(), "wrong")
	_, refused := catalog.Open(t.Context(), at.String())
	at.Host = "127.0.0.1:1"
	_, away := catalog.Open(t.Context(), at.String())
	for what, err := range map[string]error{"wrong password": refused, "no server": away} {
		if catalog.IsAway(err) != (what == "no server") {
			t.Errorf("%s: %v is marked with ErrAway: %v", what, err, catalog.IsAway(err))
		}
		err := errors.Unwrap(err) // without the URL, which is the administrator's
		if !strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%s: the log does not name the host: %v", what, err)
		}
		reason := report.Reason(err)
		if strings.Contains(reason, "127.0.0.1") || strings.Contains(reason, "user") || !strings.Contains(reason, "database") {
			t.Errorf("%s: the reason is %q", what, reason)
		}
	}
}

// Pushes of a name and the work on its images lock rows in the same order, and so never wait for the
// detection of a deadlock, which takes a second.
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
	if n := server.Deadlocks(t); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// A process that is stopped in a transaction keeps its job for a while, but no others from the queue.
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
		t.Fatalf("claimed %s", key)
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
		t.Errorf("claimed %s while a is locked", key)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if key := claim(); key != "a" {
		t.Errorf("claimed %s, want a again", key)
	}
}
