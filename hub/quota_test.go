package hub_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"lighter/hub"
	"lighter/hub/quota"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// A quota bounds the bytes of pushed and added images below a prefix. Another name of an image
// there takes no more of the quota.
func TestImageQuota(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.Quota = []quota.Quota{{Prefix: "ci", Bytes: 60_000}} })
	of := func(seed uint64) fakeImage { return image(tarball.Of(tarball.File("f", noise(seed, 20_000)))) }
	pushed := func(repository, tag string, seed uint64) (int, string) {
		t.Helper()
		manifest, config, blobs := of(seed).build()
		for _, b := range append(blobs, config) {
			h.pushBlob(repository, b)
		}
		text, err := json.Marshal(manifest)
		if err != nil {
			t.Fatal(err)
		}
		status, body, _ := h.do("PUT", "/v2/"+repository+"/manifests/"+tag, text, "Content-Type", manifest.MediaType)
		return status, string(body)
	}
	for i, tag := range []string{"1", "2"} {
		if status, body := pushed("ci/a", tag, uint64(i)); status != 201 {
			t.Fatalf("push ci/a:%s: %d %s, want 201", tag, status, body)
		}
	}
	status, body := pushed("ci/b", "3", 3)
	for _, part := range []string{"DENIED", "ci", "59 KiB", "lighter rm"} {
		if status != 403 || !strings.Contains(body, part) {
			t.Errorf("a push beyond the quota: %d %s, want 403 and %s", status, body, part)
		}
	}
	if jobs, err := h.client.Jobs(t.Context(), false); err != nil ||
		slices.ContainsFunc(jobs, func(j wire.Job) bool { return j.Kind == "name" && j.Key == "ci/b:3" }) {
		t.Errorf("after a refused push, the jobs are %+v, %v, want none for ci/b:3", jobs, err)
	}
	if status, body := pushed("ci/b", "again", 1); status != 201 {
		t.Errorf("another name of an image: %d %s, want 201", status, body)
	}
	if status, body := pushed("cim/a", "3", 3); status != 201 {
		t.Errorf("a push to another repository: %d %s, want 201", status, body)
	}
	r := startRegistry(t, of(4))
	if _, err := h.add(wire.Add{Source: r.source(), Name: "ci/c:1"}); err == nil ||
		!strings.Contains(err.Error(), "quota") {
		t.Errorf("an image that is added beyond the quota: %v, want an error", err)
	}
	h.ready("ci/a:1")
	h.ready("ci/a:2")
	// A tag that moves frees the bytes of its previous image.
	if status, body := pushed("ci/a", "1", 3); status != 201 {
		t.Errorf("a tag that moves to another image: %d %s, want 201", status, body)
	}
	h.ready("ci/a:1")
}

// The error of a quota without a prefix names the domain.
func TestQuotaOfADomain(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.Quota = []quota.Quota{{Bytes: 100}} })
	r := startRegistry(t, image(lowerTar))
	if _, err := h.add(wire.Add{Source: r.source(), Name: "a:1"}); err == nil ||
		!strings.Contains(err.Error(), "all images of the domain default would take") {
		t.Errorf("an image beyond the quota: %v, want an error that names the domain", err)
	}
}
