//go:build e2e

package hub_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"

	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// Each process of a hub serves images that the other one has ingested. An upload can go on at the
// other process.
func TestProcessesAreOneHub(t *testing.T) {
	t.Parallel()
	a, b := startProcesses(t)
	a.push("one:1", image(lowerTar, upperTar))
	got := b.ready("one:1")
	if _, chunks := b.fetchTree(got.Chain); len(chunks) == 0 {
		t.Error("the tree has no chunks")
	}
	blob := []byte(noise(9, 20_000))
	d := digest.FromBytes(blob)
	status, body, header := a.do("POST", "/v2/two/blobs/uploads/", nil)
	if status != http.StatusAccepted {
		t.Fatalf("begin an upload at one process: %d %s, want 202", status, body)
	}
	to, err := url.Parse(header.Get("Location"))
	if err != nil {
		t.Fatal(err)
	}
	status, body, header = b.do("PATCH", to.RequestURI(), blob[:8000], "Content-Type", "application/octet-stream",
		"Content-Range", "0-7999")
	if status != http.StatusAccepted {
		t.Fatalf("continue the upload at the other process: %d %s, want 202", status, body)
	}
	if to, err = url.Parse(header.Get("Location")); err != nil {
		t.Fatal(err)
	}
	q := to.Query()
	q.Set("digest", d.String())
	if status, body, _ = a.do("PUT", to.Path+"?"+q.Encode(), blob[8000:], "Content-Type",
		"application/octet-stream"); status != http.StatusCreated {
		t.Fatalf("end the upload at the first process: %d %s, want 201", status, body)
	}
	if status, body, _ = b.do("GET", "/v2/two/blobs/"+d.String(), nil); status != http.StatusOK ||
		!bytes.Equal(body, blob) {
		t.Errorf("the blob at the other process: %d, %d bytes, want 200 and %d", status, len(body), len(blob))
	}
}

// A process with other keys than the hub's does not start, because nodes would refuse its
// signatures. A process without a key does not make one.
func TestProcessWithAnotherKey(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	startProcess(t, c)
	c.Root = t.TempDir()
	h, err := hub.Open(t.Context(), c, logOf(t))
	if err == nil || !strings.Contains(err.Error(), "is missing: restore it") {
		if err == nil {
			err = h.Close()
		}
		t.Errorf("opened without a key: %v, want an error that says to restore it", err)
	}
	if _, err := hub.Keys(c.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the keys of a process that has none: %v, want none", err)
	}
	if _, err := hub.AddKey(c.Root); err != nil {
		t.Fatal(err)
	}
	if h, err := hub.Open(t.Context(), c, logOf(t)); !errors.Is(err, catalog.ErrOtherKeys) {
		if err == nil {
			err = h.Close()
		}
		t.Errorf("opened with another key: %v, want ErrOtherKeys", err)
	}
}

// A process starts with a further key, which another one does not have. What the other one
// publishes afterwards gets the signature of the further key at the next start.
func TestStatementsOfAnOldKeyAreSignedAgain(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	old := startProcess(t, c)
	both := further(t, c)
	if _, err := hub.AddKey(both.Root); err != nil {
		t.Fatal(err)
	}
	keys, err := hub.Keys(both.Root)
	if err != nil {
		t.Fatal(err)
	}
	early := old.pushReady("early:1", image(lowerTar))
	startProcess(t, both).kill()
	late := old.pushReady("late:1", image(upperTar))
	for range 2 { // the second time, the process that signed last had all keys
		now := startProcess(t, both)
		for _, i := range []wire.Image{early, late} {
			if got := signers(t, now.client, i.Chain, keys); !slices.Equal(got, keys) {
				t.Errorf("%s is signed by %q, want %q", i.Name, got, keys)
			}
		}
		now.kill()
		late = old.pushReady("later:1", image(lowerTar, upperTar))
	}
}

// If a process is killed, or stopped for longer than its lease, another process completes the
// images that the first one has accepted. If the stopped process continues, it changes nothing.
func TestProcessesTakeOver(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := startProcesses(t)
			r := startRegistry(t, image(lowerTar, upperTar))
			r.user, r.password = "alice", "a word"
			held, release := r.holdBlobs(t)
			add := wire.Add{Source: r.source(), Name: "a:1", Username: r.user, Password: r.password}
			answered := make(chan error, 1)
			go func() {
				_, err := a.client.Add(context.Background(), add, silent)
				answered <- err
			}()
			awaitHeld(t, held)
			a.signal(signal)
			release()
			images := b.settled("a:1")
			if len(images) != 1 || images[0].State != wire.StateReady {
				t.Fatalf("the other process has %+v, want it ready", images)
			}
			b.fetchTree(images[0].Chain)
			if signal == syscall.SIGSTOP {
				a.signal(syscall.SIGCONT)
				if err := <-answered; err != nil {
					t.Errorf("the client of the process that was stopped got %v, want no error", err)
				}
				a.fetchTree(a.ready("a:1").Chain)
			}
			b.idle()
			c := hubConfig(t)
			undisturbed := startProcess(t, c)
			if _, err := undisturbed.add(add); err != nil {
				t.Fatal(err)
			}
			wantSame(t, b.testHub, undisturbed.testHub)
		})
	}
}

// A process that is stopped while it publishes, for longer than its leases, does not publish when
// it continues: another process has published the image.
func TestStoppedWhileItPublishes(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	slow, held, release := holdRequest(t, c, puts("/indexes/"))
	a := startProcess(t, slow)
	b := startProcess(t, further(t, c))
	a.push("a:1", image(lowerTar, upperTar))
	awaitHeld(t, held)
	a.signal(syscall.SIGSTOP)
	if images := b.settled("a:1"); len(images) != 1 || images[0].State != wire.StateReady {
		t.Fatalf("the other process has %+v, want it ready", images)
	}
	a.signal(syscall.SIGCONT)
	release()
	b.idle()
	for _, p := range []*process{a, b} {
		p.fetchTree(p.ready("a:1").Chain)
	}
	undisturbed := startProcess(t, hubConfig(t))
	undisturbed.pushReady("a:1", image(lowerTar, upperTar))
	wantSame(t, b.testHub, undisturbed.testHub)
}

// If two processes ingest images with a common new layer at the same time, the layer is split once.
func TestProcessesShareALayer(t *testing.T) {
	t.Parallel()
	a, b := startProcesses(t)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			p := []*process{a, b}[i%2]
			name := fmt.Sprintf("image-%d:1", i)
			p.pushReady(name, image(lowerTar, tarball.Of(tarball.File("own", noise(uint64(20+i), 30_000)))))
		})
	}
	all.Wait()
	a.idle()
	undisturbed := startProcess(t, hubConfig(t))
	for i := range 6 {
		name := fmt.Sprintf("image-%d:1", i)
		undisturbed.pushReady(name, image(lowerTar, tarball.Of(tarball.File("own", noise(uint64(20+i), 30_000)))))
	}
	wantSame(t, a.testHub, undisturbed.testHub)
}

// If two processes add images that have a layer in common which a slow registry sends, the layer is
// read once.
func TestProcessesShareASlowLayer(t *testing.T) {
	t.Parallel()
	a, b := startProcesses(t)
	wantReadOnce(t, [2]*testHub{a.testHub, b.testHub})
}
