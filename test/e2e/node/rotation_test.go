//go:build e2e

package node

import (
	"slices"
	"strings"
	"testing"

	"lighter/node/resolver"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
)

// The hub's key is replaced as docs/operating.md describes, while a container runs. At each step
// the container reads uncached chunks, and images are pulled and run lazily.
func TestKeyRotation(t *testing.T) {
	s := startSite(t, "base", "python")
	pull(t, s, "python")
	running, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("python"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	const read = "sha256sum /usr/bin/* /usr/local/bin/* /usr/local/lib/python3*/*.py | sha256sum"
	want, err := running.Exec(t.Context(), "sh", "-c", read)
	if err != nil {
		t.Fatal(err)
	}
	// works checks that the running container and new ones read chunks from the hub.
	works := func(step string) {
		t.Helper()
		if _, err := s.Machine.Command(t.Context(), lighter, "cache", "prune", "--root",
			s.Machine.NodeRoot()); err != nil {
			t.Fatal(err)
		}
		if err := site.DropCaches(); err != nil {
			t.Fatal(err)
		}
		before := nodeStatus(t, s)
		if got, err := running.Exec(t.Context(), "sh", "-c", read); err != nil || got != want {
			t.Errorf("%s: the container reads %q (%v), want %q", step, got, err, want)
		}
		pull(t, s, "base")
		greet(t, s, "base")
		greet(t, s, "python")
		now := nodeStatus(t, s)
		if now.Fetched.Bytes == before.Fetched.Bytes {
			t.Errorf("%s: nothing was fetched, want some chunks", step)
		}
		for _, image := range now.Images {
			if !image.Lazy || image.Tree.IsZero() {
				t.Errorf("%s: %+v, want a lazy image with a tree", step, image)
			}
		}
		if len(now.Lost) > 0 {
			t.Errorf("%s: lost trees: %+v, want none", step, now.Lost)
		}
		if err := s.Machine.RemoveImage(t.Context(), site.Reference("base")); err != nil {
			t.Fatal(err)
		}
	}
	hubKey := func(args ...string) string {
		t.Helper()
		out, err := s.Machine.Command(t.Context(), slices.Concat([]string{lighter, "hub", "key", args[0], "--root",
			s.Hub.Root}, args[1:])...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	restartHub := func() {
		t.Helper()
		s.Hub.Kill()
		if err := s.Hub.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// pin restarts the node with pinned keys.
	pin := func(keys ...string) {
		t.Helper()
		s.UseHub(&site.Hub{URL: s.Hub.URL, Key: strings.Join(keys, ",")})
		restart(t, s)
	}

	old := hubKey("show")
	works("one key")
	added := hubKey("add")
	restartHub()
	works("the hub has both keys, the node the old one")
	pin(old, added)
	var signers []resolver.Signer
	eventually.Holds(t, "the new key's signature", func() bool {
		signers = nodeStatus(t, s).Signers
		return len(signers) == 2 && signers[1].Key == added && signers[1].Signed > 0 && len(signers[1].Missing) == 0
	})
	works("hub and node have both keys")
	hubKey("remove", old)
	restartHub()
	works("the hub has the new key, the node both")
	pin(added)
	works("hub and node have the new key")
	if got := hubKey("show"); got != added {
		t.Errorf("the hub has the keys %q, want only %q", got, added)
	}
	if err := running.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
