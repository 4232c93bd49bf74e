package main

import (
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/node/binds"
	"lighter/node/device"
	"lighter/node/direct"
	"lighter/node/directory"
	"lighter/node/doctor"
	"lighter/node/front/containerd/blobs"
	"lighter/node/fuse"
	"lighter/node/mount"
	"lighter/node/report"
	"lighter/node/takeover"
	"lighter/node/trees"
	"lighter/store/disk"
	"lighter/store/origin"
	"lighter/test/testkit/printed"
)

func someStatus() report.Status {
	tree := chunk.Sum([]byte("tree"))
	chain := "sha256:" + strings.Repeat("ab", 32)
	return report.Status{
		Version: "v1.2.3", Root: "/var/lib/lighter", Started: time.Now().Add(-90 * time.Second), TakenOver: true,
		Keeper: takeover.KeeperStatus{Error: "its keeper was killed"},
		Hubs: []origin.Health{{URL: "https://one.test", Up: true},
			{URL: "https://two.test", Error: "connection refused"}},
		Mounts: []report.MountStatus{{Mounted: mount.Mounted{Tree: tree, Dir: "/var/lib/lighter/mounts/x",
			Mode: mount.File, Local: true,
			Device: mount.DeviceStats{
				Stats: device.Stats{Faults: 203, Bytes: 8 << 20, Missed: 2 << 20},
				DeviceStats: fuse.DeviceStats{Failed: 3, Refused: 2,
					Waited: fuse.Wait{Fetched: 21, Total: 1.5, P50: 0.00004, P99: 0.042, Max: 0.1234}},
				Received: map[string]int64{"https://two.test": 1 << 20, "https://one.test": 3 << 20}}},
			Chains: []string{chain}, Files: 5500, Bytes: 190 << 20}},
		Images: []report.ImageStatus{{Chain: chain, Image: "registry.test/tools/python:3.13", Tree: tree, Lazy: true,
			Source: report.Source{Source: "tables", From: "registry.test/tools/python"},
			Why:    "its tree comes from the tables of contents in registry.test/tools/python"},
			{Chain: "sha256:" + strings.Repeat("cd", 32), Image: "registry.test/other:1",
				Source: report.Source{Source: report.SourcePull}, Why: "the hub does not know it"}},
		Binds: []binds.Bind{{Dir: "/mnt", Name: "tools:1", Chain: chain},
			{Dir: "/gone", Name: "x:1", Chain: chain, Lost: "no tree"}},
		Directory: &directory.Status{Dir: "/lighter", Names: 17, Images: []directory.ImageStatus{
			{Name: "tools:1", Chain: chain, Mounted: true}, {Name: "tools:2", Chain: chain}}},
		Blobs: &blobs.Status{Namespaces: []string{"moby", "default"}, Links: 11, Unknown: 1, Fetched: 2, Bytes: 3 << 20,
			Failures: 4, Failure: "layer sha256:ab: no such image", Problem: "containerd does not answer"},
		Direct: direct.Status{Trees: 7, Unverified: 3, Wrong: 2, Waiting: 5, Failed: "the registry is down"},
		Cache: disk.Stats{Limit: 20 << 30, Room: 20 << 30, Pinned: 1 << 30, Evicted: 2 << 30, Loading: 4 << 30,
			Hung: 6, Damaged: 3, Unread: 2, Failed: 1, OffUntil: time.Now().Add(time.Minute)},
		Lost: []report.Lost{{Tree: tree, Chains: []string{chain}, Cause: "its map is cut off"}},
		Refused: []report.Refused{{Chain: chain, Trees: []chunk.ID{tree}, Images: []string{"tools:1"},
			Cause: "it is not signed by a pinned key", Hub: "connection refused", Repair: "put the former key back"},
			{Chain: "sha256:" + strings.Repeat("cd", 32), Cause: "it is not signed by a pinned key",
				Repair: "put the former key back"}},
	}
}

func TestPrintStatus(t *testing.T) {
	s := someStatus()
	tree := s.Mounts[0].Tree
	out, _ := printed.By(t, func() {
		if err := printStatus(s); err != nil {
			t.Error(err)
		}
	})
	for _, want := range []string{"version v1.2.3", "devices taken over", "no keeper holds the devices",
		"keeper was killed", "https://one.test up", "https://two.test down since", "connection refused", "1.5s", "42ms",
		"1.0 GiB pinned, 2.0 GiB evicted", "4.0 GiB of it are not loaded yet", "left 6 reads",
		"returned 3 damaged chunks, failed to read 2 and to write 1", "cache off: its disk refuses writes",
		"/gone", "not mounted again: no tree", "not lazy   pull     the hub does not know it", "/mnt", "BROKEN TREE",
		"in containerd (moby, default): 11 not fetched, 2 fetched since the start (3.0 MiB), 4 failures",
		"no hub has: 1", "layer sha256:ab: no such image", "layers of new images: containerd does not answer",
		"7 trees, of which 3 have layers that are not verified yet, and 2 are wrong", "5 other images wait",
		"layers cannot be verified now: the registry is down",
		"its map is cut off", "directory of images /lighter: 17 images", "IN DIRECTORY",
		"REFUSED STATEMENT", tree.Short() + "   it is not signed by a pinned key; " +
			"no hub gives another statement: connection refused\n",
		"\nwhat to do: put the former key back\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in:\n%s", want, out)
		}
	}
}

func TestPrintImage(t *testing.T) {
	s := someStatus()
	out, _ := printed.By(t, func() {
		if err := printImage(report.ImageDetail{ImageStatus: s.Images[0], Mount: &s.Mounts[0],
			Lost: "its map is cut off", Refused: "it is not signed by a pinned key: put the former key back",
			NoCache: "its disk is gone", Local: 151 << 20, Completes: "waits: it rains",
			Pin:       &disk.Pin{Bytes: 150 << 20, Cached: 3 << 20},
			Snapshots: []string{"default/7/c1", "default/9/c2"},
			Binds:     s.Binds, Content: trees.Content{Chunks: 100, Bytes: 150 << 20, CachedChunks: 4,
				CachedBytes: 3 << 20}}); err != nil {
			t.Error(err)
		}
	})
	want := `registry.test/tools/python:3.13
lazy         its tree comes from the tables of contents in registry.test/tools/python
source       tables registry.test/tools/python
chain        sha256:` + strings.Repeat("ab", 32) + `
tree         ` + s.Images[0].Tree.String() + `
cached       3.0 MiB of 150 MiB (4 of 100 chunks)
local        151 MiB in a file that new mounts read without the node; it is mounted, and stays as long as the image
completion   waits: it rains
pinned       150 MiB, of which 3.0 MiB are cached
cache off    its disk is gone
broken       its map is cut off
refused      its statement: it is not signed by a pinned key: put the former key back
mounted      /var/lib/lighter/mounts/x (5500 files, 190 MiB, mode local)
faults       203, of which 21 waited for the network and 3 failed, 2 of them because too many were waiting
read         8.0 MiB: 6.0 MiB from the cache, 2.0 MiB fetched
received     3.0 MiB from https://one.test
             1.0 MiB from https://two.test
waited       1.5s in all, half of the answers within 40µs, 99 of 100 within 42ms, the longest 123ms
snapshots    default/7/c1
             default/9/c2
mounted at   /mnt
             /gone (not mounted again: no tree)
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

func TestPrintFindings(t *testing.T) {
	out, _ := printed.By(t, func() {
		printFindings([]doctor.Finding{{Area: "kernel", Level: doctor.OK, What: "it has erofs"},
			{Area: "kernel", Level: doctor.Warning, What: "it is\nold", Repair: "a newer one"},
			{Area: "containerd", Level: doctor.Problem, What: "no plugin", Repair: "[a]\n  b = 1"}})
	})
	want := `kernel
  ok         it has erofs
  warning    it is; old
             repair: a newer one
containerd
  problem    no plugin
             repair: [a]
                       b = 1
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

func TestTimesAreReadable(t *testing.T) {
	for s, want := range map[float64]string{0: "0s", 0.000016: "20µs", 0.0042: "4.2ms", 0.0426: "43ms", 1.5004: "1.5s",
		12.6: "13s", 3700: "1h1m40s"} {
		if got := seconds(s); got != want {
			t.Errorf("%v is %s, want %s", s, got, want)
		}
	}
}
