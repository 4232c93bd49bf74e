package hub_test

import (
	"strings"
	"testing"
	"time"

	"lighter/bytesize"
	"lighter/hub"
	"lighter/wire"
)

// If the free bytes of its disk are below the reserve, a hub reads no layers from other registries
// for clients: the layers would take disk space.
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

// If the free bytes of its disk are below the reserve, a hub serves its images, refuses uploads,
// and ingests nothing. Added images wait until there is room.
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
		t.Errorf("the metrics have no free bytes of the directory objects or scratch")
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
	if _, err := h.client.RetryJob(t.Context(), waiting().N); err != nil { // otherwise the job runs half a minute later
		t.Fatal(err)
	}
	h.wantReady("b:1", r.manifest)
}

// If the free bytes of its disk are below the reserve, a hub deletes objects that nothing needs,
// but does not rewrite packs or recompress startup packs, because this takes room first. It does
// both when there is room.
func TestMaintenanceNeedsRoom(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	c.GC = hub.GC{}
	opened := openHub(t, c)
	opened.Starts().Timing.MergeDelay, opened.Starts().Timing.Recompress = 0, time.Hour
	h := runHub(t, opened)
	h.laid("goes:1", image(layer(seeds(1, 40)...)))
	h.laid("dead:1", image(layer(50)))
	h.laid("keeps:1", image(layer(3, 4)))
	starts := h.laid("starts:1", image(startsTar(10)))
	h.traced(h.extents(starts.Tree), 2, 1)
	h.remove("goes:1")
	h.remove("dead:1")
	start := func(reserve bytesize.Size) {
		h.stop()
		c.DiskReserve = reserve
		opened := openHub(t, c)
		opened.Starts().Timing.MergeDelay, opened.Starts().Timing.Recompress = 0, 0
		h = runHub(t, opened)
	}
	recompression := func() wire.Job {
		t.Helper()
		all, err := h.client.Jobs(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range all {
			if j.Kind == "recompress" && j.Key == starts.Tree {
				return j
			}
		}
		t.Fatal("there is no job of the recompression")
		return wire.Job{}
	}
	retry := func() {
		t.Helper()
		if _, err := h.client.RetryJob(t.Context(), recompression().N); err != nil {
			t.Fatal(err)
		}
	}

	start(1 << 60)
	if done := h.collect(0); done.Rewritten != 0 || done.DeadBytes == 0 || done.Packs != 1 {
		t.Errorf("without room, the collection has done %+v, want one pack freed and none rewritten", done)
	}
	retry()
	for range 500 {
		if recompression().Error != "" {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if j := recompression(); j.State != wire.JobQueued || !strings.Contains(j.Error, "disk_reserve") {
		t.Errorf("the recompression: %+v, want it queued with the reason", j)
	}

	start(0)
	if done := h.collect(0); done.DeadBytes != 0 {
		t.Errorf("with room, the collection has done %+v, want no dead bytes left", done)
	}
	retry() // otherwise the job runs half a minute later
	h.recompressed("starts:1")
	h.wantClean("in the end", "keeps:1", "starts:1")
}

// If the free bytes of its disk are below the reserve, a repair makes no objects again, and says
// why.
func TestRepairNeedsRoom(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	h := runHub(t, openHub(t, c))
	h.pushReady("a:1", image(lowerTar, upperTar))
	h.idle()
	h.stop()
	c.DiskReserve = 1 << 60
	h = runHub(t, openHub(t, c))
	h.loseObjects()
	check := h.fsck(wire.Fsck{Repair: true})
	if text := findings(check); check.Left() == 0 || !strings.Contains(text, "disk_reserve") ||
		!strings.Contains(text, "make the hub's disks larger") {
		t.Errorf("without room, the repair says %s, want objects that are left, and why", text)
	}
	h.stop()
	c.DiskReserve = 0
	h = runHub(t, openHub(t, c))
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 {
		t.Errorf("with room: %s", findings(check))
	}
	h.wantClean("in the end", "a:1")
}
