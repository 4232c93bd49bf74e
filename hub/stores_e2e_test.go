//go:build e2e

package hub_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"lighter/hub"
	"lighter/test/testkit/postgres"
	"lighter/test/testkit/s3"
)

// TestMain runs all tests with PostgreSQL and S3 as the stores of hubs. In a process that a test
// has started as a hub, it runs the hub.
func TestMain(m *testing.M) {
	if config := os.Getenv(processEnv); config != "" {
		err := shiftClock()
		if err == nil {
			err = runProcess(config)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	status, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func run(m *testing.M) (status int, err error) {
	database, err := postgres.New(postgres.NoSync)
	if err != nil {
		return 0, err
	}
	defer database.Close()
	storage, err := s3.New()
	if err != nil {
		return 0, err
	}
	defer storage.Close()
	var buckets atomic.Int64
	newStores = func(t *testing.T, c *hub.Config) {
		c.Catalog = database.Database(t)
		if c.Bucket, err = storage.Bucket(int(buckets.Add(1))); err != nil {
			t.Fatal(err)
		}
	}
	newMirror = func(t *testing.T) (to, dir string) {
		if to, err = storage.Bucket(int(buckets.Add(1))); err != nil {
			t.Fatal(err)
		}
		return to, bucketDir(to)
	}
	bucketDir = func(bucket string) string {
		u, err := url.Parse(bucket)
		if err != nil {
			panic(err)
		}
		return filepath.Join(storage.Dir(u.Host), u.Query().Get("prefix"))
	}
	status = m.Run()
	found, err := database.Deadlocks()
	if found != "" {
		err = fmt.Errorf("the database has found deadlocks, want none:\n%s", found)
	}
	return status, err
}
