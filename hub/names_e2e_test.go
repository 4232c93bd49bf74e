//go:build e2e

package hub_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"lighter/wire"
)

// putManifest pushes the manifest of an image whose blobs the registry has, and returns the status.
func (p *process) putManifest(repository, tag string, i fakeImage) int {
	p.t.Helper()
	manifest, _, _ := i.build()
	b, err := json.Marshal(manifest)
	if err != nil {
		p.t.Fatal(err)
	}
	status, _, _ := p.do("PUT", "/v2/"+repository+"/manifests/"+tag, b, "Content-Type", manifest.MediaType)
	return status
}

// wantPushed fails the test unless all processes serve the manifest of a name and its tree, and the
// registry and the catalog agree.
func wantPushed(t *testing.T, name string, of ...*process) {
	t.Helper()
	ref, err := wire.ParseName(name)
	if err != nil {
		t.Fatal(err)
	}
	of[0].ready(name)
	of[0].idle()
	for _, p := range of {
		p.expect("/v2/"+ref.Repository+"/manifests/"+ref.Tag, http.StatusOK)
		p.fetchTree(p.ready(name).Chain)
	}
	if check := of[0].fsck(wire.Fsck{}); len(check.Findings) != 0 {
		t.Errorf("registry and catalog differ: %s", findings(check))
	}
}

// A push that one process accepts while another one removes an image is not lost, whether the other
// process is deleting the pushed tag or, for a client of the registry, the manifest that the push
// gives another tag.
func TestRemovalBesideAPush(t *testing.T) {
	for what, deleted := range map[string]struct {
		path, tag string
		remove    func(at *process, digest string) error
	}{
		"same name": {"/_manifests/tags/1/", "1", func(at *process, _ string) error {
			return at.client.Remove(at.t.Context(), "a:1")
		}},
		"same manifest": {"/_manifests/revisions/", "2", func(at *process, digest string) error {
			if status, body, _ := at.do("DELETE", "/v2/a/manifests/"+digest, nil); status != http.StatusAccepted {
				return fmt.Errorf("%d %s", status, body)
			}
			return nil
		}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := hubConfig(t)
			slow, held, release := holdRequest(t, c, deletes(deleted.path))
			a := startProcess(t, slow)
			b := startProcess(t, further(t, c))
			pushed := image(lowerTar)
			digest := b.pushReady("a:1", pushed).Digest
			b.idle()
			b.signal(syscall.SIGSTOP) // so that the other process removes the image
			removed := make(chan error, 1)
			go func() { removed <- deleted.remove(a, digest) }()
			awaitHeld(t, held)
			b.signal(syscall.SIGCONT)
			status := make(chan int, 1)
			go func() { status <- b.putManifest("a", deleted.tag, pushed) }()
			answered := 0
			select { // a push that does not wait is answered while the removal deletes
			case answered = <-status:
			case <-time.After(time.Second):
			}
			release()
			if answered == 0 {
				answered = <-status
			}
			if err := <-removed; err != nil {
				t.Errorf("the removal: %v", err)
			}
			if answered != http.StatusCreated {
				t.Fatalf("the push: %d, want 201", answered)
			}
			wantPushed(t, "a:"+deleted.tag, b, a)
		})
	}
}

// A worker that is stopped during a removal for longer than its leases does not remove the image
// that was pushed meanwhile.
func TestRemovalWakesUp(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	dir := t.TempDir()
	a := startProcess(t, c, stepsEnv+"="+dir)
	b := startProcess(t, further(t, c), stepsEnv+"="+t.TempDir())
	pushed := image(lowerTar)
	b.pushReady("a:1", pushed)
	b.idle()
	b.signal(syscall.SIGSTOP)
	remove := scene{ask: func(ctx context.Context, h *process, _ int) error { return h.client.Remove(ctx, "a:1") }}
	if reached, _ := a.until(t, remove, 0, dir, "stop name: before remove image"); !reached {
		t.Fatal("the removal did not reach its transaction")
	}
	b.signal(syscall.SIGCONT)
	b.idle() // b has done the removal
	if status := b.putManifest("a", "1", pushed); status != http.StatusCreated {
		t.Fatalf("the push: %d, want 201", status)
	}
	b.ready("a:1")
	a.signal(syscall.SIGCONT)
	a.idle()
	wantPushed(t, "a:1", b, a)
}

// If one process removes a name while another one pushes its manifest under two names, registry and
// catalog agree in the end. A name whose push ended after the removal exists.
func TestRemovalsBesidePushes(t *testing.T) {
	t.Parallel()
	a, b := startProcesses(t)
	pushed := image(lowerTar)
	a.pushReady("a:1", pushed)
	rounds := 10
	if soak {
		rounds = 200
	}
	for round := range rounds {
		ended := map[string]time.Time{} // by tag; "" is the removal's
		var mu sync.Mutex
		var all sync.WaitGroup
		end := func(tag string) {
			mu.Lock()
			defer mu.Unlock()
			ended[tag] = time.Now()
		}
		all.Go(func() {
			if err := a.client.Remove(t.Context(), "a:1"); err != nil {
				t.Errorf("round %d: remove a:1: %v", round, err)
			}
			end("")
		})
		for _, tag := range []string{"1", "2"} {
			all.Go(func() {
				time.Sleep(time.Duration(round%50) * time.Millisecond)
				status := b.putManifest("a", tag, pushed)
				// The S3 server refuses a write into a directory that it is just deleting. Clients
				// repeat the push.
				for n := 0; n < 5 && status == http.StatusServiceUnavailable; n++ {
					status = b.putManifest("a", tag, pushed)
				}
				if status != http.StatusCreated {
					t.Errorf("round %d: push of %s: %d, want 201", round, tag, status)
				}
				end(tag)
			})
		}
		all.Wait()
		wantPushed(t, "a:2", a, b)
		if ended["1"].After(ended[""]) {
			wantPushed(t, "a:1", a, b)
		}
		if err := b.client.Remove(t.Context(), "a:2"); err != nil {
			t.Fatal(err)
		}
		a.pushReady("a:1", pushed)
	}
}
