package hub_test

import (
	"strings"
	"testing"
	"time"

	"lighter/wire"
)

// A hub whose disk has less than its reserve reads no layers for clients from other registries:
// they would take the rest of the disk.
func TestUpstreamLayersNeedRoom(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	h := runHub(t, openHub(t, c))
	r := startRegistry(t, image(lowerTar))
	h.added(wire.Add{Source: r.source(), Name: "a:1"})
	lower, lowerBytes := layerOf(lowerTar)
	h.stop()
	c.DiskReserve = 1 << 60
	h = runHub(t, openHub(t, c))
	if status, _, body, err := h.getBlob("a", lower); status != 503 || err != nil ||
		!strings.Contains(string(body), "disk_reserve") {
		t.Errorf("a layer without room: %d %s (%v), want 503 with the reason", status, body, err)
	}
	h.stop()
	c.DiskReserve = 0
	h = runHub(t, openHub(t, c))
	h.expectBlob("a", lower, lowerBytes)
}

// A hub whose disk has less than its reserve serves what it has, and takes nothing more. What it
// has accepted before goes on when there is room.
func TestDiskReserve(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	h := runHub(t, openHub(t, c))
	a := h.pushReady("a:1", image(lowerTar))
	r := startRegistry(t, image(upperTar))
	h.stop()
	c.DiskReserve = 1 << 60
	h = runHub(t, openHub(t, c))
	h.fetchTree(a.Chain)
	h.expect("/v2/a/manifests/1", 200)
	if status, body, _ := h.do("POST", "/v2/c/blobs/uploads/", nil); status != 507 ||
		!strings.Contains(string(body), "disk_reserve") {
		t.Errorf("an upload: %d %s, want 507 with the reason", status, body)
	}
	if status, body, _ := h.do("GET", "/readyz", nil); status != 200 ||
		!strings.Contains(string(body), "disk_reserve") {
		t.Errorf("readiness: %d %s, want 200 with the reason", status, body)
	}
	_, metrics, _ := h.do("GET", "/metrics", nil)
	if !strings.Contains(string(metrics), `lighter_hub_disk_free_bytes{dir="objects"}`) &&
		!strings.Contains(string(metrics), `lighter_hub_disk_free_bytes{dir="scratch"}`) {
		t.Errorf("no free bytes in the metrics")
	}
	ended := h.adding(wire.Add{Source: r.source(), Name: "b:1"})
	waiting := func() wire.Job {
		jobs, err := h.client.Jobs(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			if j.Key == "b:1" {
				return j
			}
		}
		return wire.Job{}
	}
	for range 3000 {
		if strings.Contains(waiting().Error, "disk_reserve") {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if j := waiting(); j.State != wire.JobQueued || !strings.Contains(j.Error, "disk_reserve") {
		t.Errorf("the job of an added image: %+v, want it queued with the reason", j)
	}
	h.stop()
	<-ended

	c.DiskReserve = 0
	h = runHub(t, openHub(t, c))
	if _, err := h.client.RetryJob(t.Context(), waiting().N); err != nil { // the pause is half a minute
		t.Fatal(err)
	}
	h.wantReady("b:1", r.manifest)
}
