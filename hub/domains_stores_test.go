package hub_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"lighter/hub"
	"lighter/hub/rootdir"
	"lighter/wire"
)

// A key that is added to a domain signs the statements of that domain only.
func TestKeysOfDomains(t *testing.T) {
	t.Parallel()
	h := startHub(t, withTeam)
	h.push("a:1", image(lowerTar))
	h.push("team/a:1", image(lowerTar))
	chain := h.ready("a:1").Chain
	h.in("team").ready("team/a:1")
	dir := rootdir.Domain(h.config.Root, "team")
	ours, err := hub.Keys(rootdir.Domain(h.config.Root, wire.DefaultDomain))
	if err != nil {
		t.Fatal(err)
	}
	teams, err := hub.Keys(dir)
	if err != nil {
		t.Fatal(err)
	}
	added, err := hub.AddKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(ours, teams, []string{added})
	h = h.restart()
	for domain, want := range map[string][]string{wire.DefaultDomain: ours, "team": append(teams, added)} {
		if got := signers(t, h.in(domain).client, chain, all); !slices.Equal(got, want) {
			t.Errorf("domain %s is signed by %q, want %q", domain, got, want)
		}
	}
	if err := hub.RemoveKey(dir, teams[0]); err != nil {
		t.Fatal(err)
	}
	h = h.restart()
	for domain, want := range map[string][]string{wire.DefaultDomain: ours, "team": {added}} {
		if got := signers(t, h.in(domain).client, chain, all); !slices.Equal(got, want) {
			t.Errorf("afterwards, domain %s is signed by %q, want %q", domain, got, want)
		}
	}
}

// During a hold, no domain deletes anything, also if the configuration lacks the domain and only
// the directory has it.
func TestNoDomainDeletesWhileHeld(t *testing.T) {
	t.Parallel()
	h := startHub(t, withTeam)
	team := h.in("team")
	team.laid("team/goes:1", image(layer(2)))
	team.idle()
	team.Blobs().Delay = 0
	all := func() []string {
		return slices.Concat(files(t, objectsDir(team.config)), team.registryFiles("/blobs/sha256/"))
	}
	before := all()
	config := h.config
	if config.Catalog == "" {
		config.Domains = nil // lighter backup hold --root has no configuration
	}
	err := whileHeld(t, config, func(context.Context) error {
		team.remove("team/goes:1")
		time.Sleep(2 * time.Millisecond) // so that all blobs were touched at least a millisecond before the run
		team.Collector().Delay = 0
		j, err := team.Collector().Start(t.Context())
		if err == nil {
			_, err = team.Collector().Await(t.Context(), j.N, func(wire.Progress) error { return nil })
		}
		if now := all(); !slices.Equal(now, before) {
			t.Errorf("during a hold, there are\n%v\nwant\n%v", now, before)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	team.collectBlobs()
	if now := team.registryFiles("/blobs/sha256/"); len(now) > 0 {
		t.Errorf("after the hold and a collection, the registry has %v, want no blobs", now)
	}
}

// A check compares the stores of one domain. A repair makes the domain's lost objects again from
// the domain's own registry.
func TestFsckOfDomains(t *testing.T) {
	t.Parallel()
	h := startHub(t, withTeam)
	team := h.in("team")
	h.pushReady("a:1", image(lowerTar))
	h.push("team/a:1", image(lowerTar))
	team.ready("team/a:1")
	h.wantClean("at first", "a:1")
	team.wantClean("at first", "team/a:1")
	team.loseObjects()
	h = h.restart() // nothing is cached
	team = h.in("team")
	h.wantClean("while another domain has lost its objects", "a:1")
	names := func(f wire.Finding) bool { return slices.Contains(f.Images, "team/a:1") }
	if check := team.fsck(wire.Fsck{}); check.Left() == 0 || !slices.ContainsFunc(check.Findings, names) {
		t.Errorf("a domain without objects: %+v, want its image named", check)
	}
	if check := h.fsck(wire.Fsck{Deep: true, Repair: true}); len(check.Findings) > 0 {
		t.Errorf("a repair of the other domain: %+v, want nothing to do", check)
	}
	if check := team.fsck(wire.Fsck{Deep: true, Repair: true}); check.Left() != 0 {
		t.Errorf("not repaired: %s", findings(check))
	}
	team.wantClean("after the repair", "team/a:1")
	h.wantClean("after the repair of another domain", "a:1")
}
