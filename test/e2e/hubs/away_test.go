//go:build e2e

package hubs

import (
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/postgres"
	"lighter/test/testkit/s3"
)

// awayTime is how long a store is away: longer than the leases in the long form.
func awayTime() time.Duration {
	if os.Getenv("LIGHTER_SOAK") != "" {
		return time.Minute
	}
	return 8 * time.Second
}

// unstableBucket makes an empty bucket, and returns its URL through a proxy. While away is set, the
// proxy closes the connection of each request without an answer.
func unstableBucket(t *testing.T, away *atomic.Bool) string {
	t.Helper()
	through, proxy, err := s3.Proxy(newBucket(t), func(w http.ResponseWriter, req *http.Request,
		forward http.HandlerFunc) {
		if away.Load() {
			panic(http.ErrAbortHandler)
		}
		forward(w, req)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	return through
}

// PostgreSQL is away, and then the bucket. Both times a container reads files that it has not read
// before. Without PostgreSQL the reads end meanwhile. Without the bucket they wait, and end when it
// is back. An image that was pushed before becomes ready afterwards, and is lazy.
func TestStoresAreAway(t *testing.T) {
	server := postgres.Start(t)
	var away atomic.Bool
	s, second, _ := startProcesses(t, production(newCatalog(t, server), unstableBucket(t, &away)))
	push(t, second, image(t, 0, 12), "prod")
	c := run(t, s, balanced("prod"))
	reads(t, c, 0, 2)

	for n, store := range []struct {
		name        string
		leave, back func() error
		readable    bool // while the store is away
	}{
		{"database", func() error { server.Kill(); return nil }, server.Run, true},
		{"bucket", func() error { away.Store(true); return nil },
			func() error { away.Store(false); return nil }, false},
	} {
		startPush(t, image(t, 20+n, 21+n), store.name)
		if err := store.leave(); err != nil {
			t.Fatal(err)
		}
		left := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- read(t, c, 2+4*n, 6+4*n) }()
		var err error
		select {
		case err = <-ended:
			if !store.readable {
				t.Errorf("reads without the %s ended after %v (%v), want them to wait",
					store.name, time.Since(left), err)
			}
			time.Sleep(awayTime() - time.Since(left))
		case <-time.After(awayTime()):
			if store.readable {
				t.Errorf("reads without the %s still wait after %v, want them to end", store.name, awayTime())
			}
		}
		if err := store.back(); err != nil {
			t.Fatal(err)
		}
		if !store.readable {
			err = <-ended
		}
		if err != nil {
			t.Errorf("reads without the %s: %v", store.name, err)
		}
		name := store.name + ":latest"
		eventually.Holds(t, "an answer of the hub", func() bool {
			_, err := second.Lighter(t.Context(), "images")
			return err == nil
		})
		eventually.Holds(t, name+" to be ready", func() bool { return isReady(t, second, name) })
		reads(t, run(t, s, balanced(store.name)), 20+n, 21+n)
	}
	hubCommand(t, second, "fsck", "--deep")
}
