//go:build e2e

package hub_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lighter/hub"
	"lighter/test/testkit/history"
	"lighter/wire"
)

const (
	// besideToday is the oldest commit whose hub may run beside today's hub. Its newest migration
	// is the tenth, which is "oldest" in table meta: no hub with fewer migrations may use today's
	// database. The two schemas differ if today's hub has further migrations.
	besideToday = "c53a2cda0e4b"
	// refusedToday is a commit before besideToday: its hub may not use today's database.
	refusedToday = "50460199f05f"
)

// earlier builds the program of a commit, and returns its path.
func earlier(t *testing.T, commit string) string {
	t.Helper()
	program := history.Build(t, commit)
	if program == "" {
		t.Skipf("history without commit %s", commit)
	}
	return program
}

// command returns the command that runs an earlier program as a hub. tables are added to its
// configuration.
func command(t *testing.T, program string, c hub.Config, tables string) *exec.Cmd {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "root = %q\nlisten = %q\nplatforms = [\"linux/amd64\"]\n", c.Root, c.Listen)
	fmt.Fprintf(&text, "sources = [\"127.0.0.1\"]\n")
	for key, value := range map[string]string{"catalog": c.Catalog, "bucket": c.Bucket} {
		if value != "" {
			fmt.Fprintf(&text, "%s = %q\n", key, value)
		}
	}
	text.WriteString(tables)
	file := filepath.Join(t.TempDir(), "hub.toml")
	write(t, file, []byte(text.String()))
	return exec.Command(program, "hub", "--config", file)
}

// A hub of an earlier version and today's hub use one catalog and one bucket, which the earlier hub
// has made. Each serves images that the other one has ingested. Today's hub completes an image that
// the earlier one has accepted.
func TestHubsOfTwoVersions(t *testing.T) {
	program := earlier(t, besideToday)
	c := hubConfig(t)
	old := startProgram(t, c, func(c hub.Config) *exec.Cmd {
		return command(t, program, c, "[gc]\nevery_minutes = 0\n") // see hubConfig
	})
	old.pushReady("before:1", image(upperTar))
	schema := schemaOf(t, c)
	today := startProcess(t, further(t, c))
	t.Logf("the schema was %d, and is %d with today's hub", schema, schemaOf(t, c))
	undisturbed := startProcess(t, hubConfig(t))
	undisturbed.pushReady("before:1", image(upperTar))
	for round := range 6 {
		pair := [][2]*process{{old, today}, {today, old}}[round%2]
		name := roundName(round, 1)
		pair[0].push(name, imageOfRound(round, 1))
		got := pair[1].ready(name)
		pair[1].fetchTree(got.Chain)
		undisturbed.pushReady(name, imageOfRound(round, 1))
		if round%3 == 2 {
			pair[1].remove(name)
			undisturbed.remove(name)
		}
		check, err := pair[0].client.Verify(t.Context(), "before:1", silent)
		if err != nil || len(check.Problems) > 0 {
			t.Errorf("round %d: verification of before:1: %+v, %v, want no problems", round, check, err)
		}
	}
	// The earlier hub is killed while it copies an image.
	r := startRegistry(t, image(lowerTar, startsTar(10)))
	held, release := r.holdBlobs(t)
	add := wire.Add{Source: r.source(), Name: "after:1"}
	go func() { _, _ = old.client.Add(context.Background(), add, silent) }() // fails, because its process is killed
	awaitHeld(t, held)
	old.kill()
	release()
	// Today's hub goes on when the lease of the killed hub has ended.
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if images, err := today.client.Images(t.Context(), "after:1"); err != nil || time.Now().After(end) {
			t.Fatalf("images %+v, %v, want after:1 ready", images, err)
		} else if len(images) == 1 && images[0].State == wire.StateReady {
			break
		}
	}
	if _, err := undisturbed.add(add); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*process{today, undisturbed} {
		h.idle()
	}
	wantSame(t, today.testHub, undisturbed.testHub)
}

// schemaOf returns the number of the newest migration of a catalog in PostgreSQL.
func schemaOf(t *testing.T, c hub.Config) (n int64) {
	t.Helper()
	db, err := sql.Open("pgx", c.Catalog)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), `SELECT MAX(version_id) FROM goose_db_version`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A hub that is too old for a catalog does not start, and does not change the catalog.
func TestTooOldHubIsRefused(t *testing.T) {
	t.Parallel()
	program := earlier(t, refusedToday)
	c := sceneConfig(t, scene{}, setupSQLite)
	today := startProcess(t, c)
	today.pushReady("a:1", image(lowerTar, upperTar))
	today.idle()
	today.signal(syscall.SIGTERM)
	if err := today.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(catalogOf(c))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := command(t, program, c, "")
	refused := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	out, err := refused.CombinedOutput()
	if !errors.As(err, new(*exec.ExitError)) || ctx.Err() != nil || !bytes.Contains(out, []byte("schema")) {
		t.Errorf("the old hub: %v, %s; want an error about the schema", err, out)
	}
	if after, err := os.ReadFile(catalogOf(c)); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the old hub has changed the catalog: %d bytes, before %d, %v", len(after), len(before), err)
	}
	again := startProcess(t, c)
	again.wantClean("after the old hub", "a:1")
}
