//go:build e2e

package hub_test

import (
	"context"
	"net/http"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"

	"lighter/hub"
)

// If a process is stopped while it deletes a blob, for longer than its claim of the blob lasts, it
// does not delete the blob that was pushed again meanwhile.
func TestCollectionWakesUp(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	c.GC = hub.GC{} // nothing stays
	dir := t.TempDir()
	a := startProcess(t, c, stepsEnv+"="+dir)
	b := startProcess(t, further(t, c), stepsEnv+"="+t.TempDir())
	pushed := image(lowerTar)
	b.pushReady("a:1", pushed)
	b.remove("a:1")
	b.idle()
	b.signal(syscall.SIGSTOP) // so that the other process collects
	collect := scene{ask: func(ctx context.Context, h *process, _ int) error { return h.collectOnce(ctx) }}
	if reached, _ := a.until(t, collect, 0, dir, "stop collect: after begin to delete blob"); !reached {
		t.Fatal("the collection has not deleted from the registry")
	}
	b.signal(syscall.SIGCONT)
	b.idle() // it has done the collection, except the blob that the other process is deleting
	b.pushReady("a:1", pushed)
	a.signal(syscall.SIGCONT)
	a.idle()
	wantPushed(t, "a:1", b, a)
	_, config, layers := pushed.build()
	for _, blob := range append(layers, config) {
		a.expect("/v2/a/blobs/"+digest.FromBytes(blob).String(), http.StatusOK)
	}
}
