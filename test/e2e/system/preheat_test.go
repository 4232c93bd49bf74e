//go:build e2e

package system

import (
	"encoding/json"
	"strings"
	"testing"

	"lighter/node/preheat"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// preheated runs `lighter preheat` for the image python, and returns what it reports.
func preheated(t *testing.T, s *site.Site, flags ...string) (p preheat.Progress) {
	t.Helper()
	out, err := s.Machine.Lighter(t.Context(), "preheat", append(flags, "--json", "python:latest")...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &p)
	}
	if err != nil || p.Cached != p.All {
		t.Fatalf("preheat %v: %s, %v; want all wanted chunks to be cached", flags, out, err)
	}
	return p
}

// An image that was preheated before its pull needs no hub any more once it was pulled: its startup
// packs are there, and with --all all of its chunks.
func TestPreheat(t *testing.T) {
	s := start(t, site.Options{}, "+python")
	var packs preheat.Progress
	// A slow hub tells that the image is ready before the image has its first startup packs.
	eventually.Holds(t, "the chunks of startup packs", func() bool {
		packs = preheated(t, s)
		return packs.All > 0
	})
	if packs.Image != "python:latest" {
		t.Errorf("got %+v, want the image python:latest", packs)
	}
	if st := sitetest.Status(t, s); len(st.Images) != 0 || st.Cache.Chunks == 0 {
		t.Errorf("got images %+v, %d cached chunks; want chunks of no image", st.Images, st.Cache.Chunks)
	}
	if found := left(t, s); len(found) > 0 {
		t.Errorf("files and mounts after the preheat, want only cached chunks:\n%s", strings.Join(found, "\n"))
	}
	if again := images.Received(t, s, func() { preheated(t, s) }); again > 3<<20 {
		t.Errorf("a second preheat received %d bytes, want at most 3 MiB: the index", again)
	}
	if all := preheated(t, s, "--all"); all.All <= packs.All {
		t.Errorf("--all: got %d bytes, want more than the %d of startup packs", all.All, packs.All)
	}
	pull(t, s, site.Lighter, "python")
	s.Hub.Kill()
	const readAll = "cat var/lib/dpkg/info/*.md5sums | md5sum --check --quiet --ignore-missing - && echo right"
	if out := run(t, s, site.Lighter, "python", "sh", "-c", "cd / && "+readAll); out != "right\n" {
		t.Errorf("a container without a hub prints %q, want right", out)
	}
	out, err := s.Machine.Lighter(t.Context(), "preheat", "python:latest")
	if err == nil || strings.Count(err.Error(), "\n") > 1 {
		t.Errorf("without a hub: got %q, %v; want an error of one line", out, err)
	}
}
