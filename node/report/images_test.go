package report

import (
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/node/binds"
	"lighter/node/device"
	"lighter/node/front/containerd"
	"lighter/node/mount"
	"lighter/store/disk"
)

// A word names an image by its reference, by the part after a slash, or by six digits of an ID.
func TestWordsForImages(t *testing.T) {
	tree := chunk.Sum([]byte("tree"))
	image := ImageStatus{Image: "registry.test:5000/physics/root:6.32", Chain: "sha256:" + strings.Repeat("ab", 32),
		Tree: tree}
	for word, is := range map[string]bool{
		"registry.test:5000/physics/root:6.32": true, "physics/root:6.32": true, "root:6.32": true,
		"oot:6.32": false, "physics/root": false, "": false, "registry.test:5000": false,
		"sha256:abab": false, "sha256:ababab": true, "ababab": true, "ababa": false, "bababa": false, image.Chain: true,
		tree.String(): true, tree.Short(): true, tree.String()[:6]: true, "sha256:": false,
	} {
		if image.is(word) != is {
			t.Errorf("%q: got %t, want %t", word, !is, is)
		}
	}
	plain := ImageStatus{Chain: "sha256:" + strings.Repeat("cd", 32)}
	if plain.is("000000") { // a tree that is not known
		t.Error("a word of zeros names an image without a tree")
	}
}

// The details of an image have the mounts, binds, pins and causes of that image, and no other.
func TestDetailsOfAnImage(t *testing.T) {
	trees := []chunk.ID{chunk.Sum([]byte("a")), chunk.Sum([]byte("b"))}
	s := Status{
		Images: []ImageStatus{{Chain: "a", Tree: trees[0]}, {Chain: "plain"}},
		Mounts: []MountStatus{{Mounted: mount.Mounted{Tree: trees[0],
			Device: mount.DeviceStats{Stats: device.Stats{Faults: 7}}}, Chains: []string{"a"}},
			{Mounted: mount.Mounted{Tree: trees[1]}, Chains: []string{"b"}}},
		Binds: []binds.Bind{{Dir: "/one", Name: "b:1", Chain: "b"}, {Dir: "/two", Name: "a:1", Chain: "a"}},
		Lost:  []Lost{{Tree: trees[1], Cause: "it is damaged"}},
	}
	s.Cache.Absent = "its disk is gone"
	known := s.images()
	if len(known) != 3 || known[2].Image != "b:1" || known[2].Tree != trees[1] {
		t.Fatalf("got images %+v, want three", known)
	}
	if d := s.detail(known[0], []disk.Pin{{ID: trees[0],
		Bytes: 9}}); d.Mount == nil || d.Mount.Device.Faults != 7 || len(d.Binds) != 1 || d.Binds[0].Dir != "/two" ||
		d.Lost != "" || d.Pin == nil || d.Pin.Bytes != 9 {
		t.Errorf("the mounted image: got %+v, want its mount, its bind and its pin, and that it is not lost", d)
	}
	if d := s.detail(known[1], nil); d.Mount != nil || d.Pin != nil || len(d.Binds) != 0 || d.Lost != "" {
		t.Errorf("an image that is not lazy: got %+v, want no mount, pin or bind, and that it is not lost", d)
	}
	if d := s.detail(known[2], nil); d.Mount == nil || d.Lost != "it is damaged" || !strings.Contains(d.NoCache,
		"its disk is gone") {
		t.Errorf("the damaged image: got %+v, want its mount, and why it is lost and the cache is not used", d)
	}
}

// The state of an image names no hub that is not known to have it.
func TestWhyWithoutARecordedReason(t *testing.T) {
	i := new(Reporter).imageOf(containerd.Layer{Chain: "sha256:1", Lazy: true}, chunk.ID{})
	if i.Source.Source != "" || strings.Contains(i.Why, "hub") {
		t.Errorf("a lazy layer whose tree is elsewhere: %+v, want no source", i)
	}
}
