package doctor

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/buildinfo"
	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node"
	"lighter/node/binds"
	"lighter/node/control"
	"lighter/node/directory"
	"lighter/node/front/containerd"
	"lighter/node/front/containerd/blobs"
	"lighter/node/mount"
	"lighter/node/report"
	"lighter/store/disk"
	"lighter/store/origin"
)

// check checks that the last finding has this level and contains these words. Each warning and each
// problem must have a repair, and each text must be one line.
func check(t *testing.T, what string, findings []Finding, level Level, words string) {
	t.Helper()
	for _, f := range findings {
		if f.Level != OK && f.Level != Unchecked && f.Repair == "" || strings.Contains(f.What, "\n") {
			t.Errorf("%s: got no repair, or several lines, in %+v", what, f)
		}
	}
	if len(findings) == 0 {
		t.Fatalf("%s: got no finding", what)
	}
	if last := findings[len(findings)-1]; last.Level != level || !strings.Contains(last.What+last.Repair, words) {
		t.Errorf("%s: got %+v, want %s with %q", what, last, level, words)
	}
}

// system returns a machine whose system has these files.
func system(t *testing.T, files map[string]string) *machine {
	t.Helper()
	m := &machine{config: node.DefaultConfig(), system: t.TempDir()}
	for name, text := range files {
		path := m.path(name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// Each mount that a trial could not make gives a finding of its own.
func TestTrials(t *testing.T) {
	fine := trial{resends: true}
	for what, c := range map[string]struct {
		change func(*trial)
		level  Level
		words  string
		behind int // number of findings after the one to check
	}{
		"all is well": {func(*trial) {}, OK, "FUSE works", 0},
		"not root":    {func(t *trial) { t.failed = unix.EPERM }, Unchecked, "not permitted", 0},
		"blocks only": {func(t *trial) { t.erofs = unix.ENOTBLK }, Warning, "block devices", 2},
		"stacked":     {func(t *trial) { t.erofs = unix.ELOOP }, Warning, "--root on ext4", 2},
		"no EROFS":    {func(t *trial) { t.erofs = unix.ENODEV }, Problem, "cannot be mounted", 2},
		"no overlay":  {func(t *trial) { t.overlay = unix.EINVAL }, Problem, "upper directory", 1},
		"no FUSE":     {func(t *trial) { t.fuse = unix.ENOENT }, Problem, "mknod /dev/fuse", 0},
		"an old FUSE": {func(t *trial) { t.resends = false }, OK, "journal", 0},
	} {
		m, tried := system(t, map[string]string{"dev/loop-control": ""}), fine
		c.change(&tried)
		found := m.judgeTrial(tried)
		check(t, what, found[:len(found)-c.behind], c.level, c.words)
	}
}

// If EROFS cannot be mounted from plain files, the finding depends on loop devices and mount_mode.
func TestLoopDevices(t *testing.T) {
	loops := map[string]string{"dev/loop-control": ""}
	for what, c := range map[string]struct {
		files map[string]string
		mode  mount.Mode
		level Level
		words string
	}{
		"auto":            {loops, mount.Auto, Warning, "are used"},
		"loop":            {loops, mount.Loop, Warning, "are used"},
		"no loop devices": {nil, mount.Auto, Problem, "modprobe loop"},
		"file":            {loops, mount.File, Problem, `mount_mode = "auto"`},
		"none":            {loops, mount.None, Warning, "mount_mode is none"},
	} {
		m := system(t, c.files)
		m.config.MountMode = c.mode
		check(t, what, m.judgeErofs(unix.ENOTBLK), c.level, c.words)
	}
}

// A root that other users can write to is a problem. A root that they can read is a warning.
func TestOwnerOfTheRoot(t *testing.T) {
	for what, c := range map[string]struct {
		uid, mode uint32
		level     Level
		words     string
	}{
		"root's alone":      {0, unix.S_IFDIR | 0o700, OK, "only root"},
		"another user's":    {1000, unix.S_IFDIR | 0o700, Problem, "chown root /r; chmod 700 /r"},
		"writable by all":   {0, unix.S_IFDIR | 0o1777, Problem, "mode 1777"},
		"readable by all":   {0, unix.S_IFDIR | 0o755, Warning, "chmod 700"},
		"no directory":      {0, unix.S_IFREG | 0o600, Problem, "not a directory"},
		"writable by group": {0, unix.S_IFDIR | 0o770, Problem, "users other than root"},
	} {
		m := system(t, nil)
		m.config.Root = "/r"
		check(t, what, m.judgeDirectory(unix.Stat_t{Uid: c.uid, Mode: c.mode}, nil), c.level, c.words)
	}
}

// Only a security module that may refuse reads of containers gives a warning.
func TestSecurityModules(t *testing.T) {
	const enforce = "sys/fs/selinux/enforce"
	m := system(t, map[string]string{enforce: "1"})
	check(t, "SELinux enforces", m.securityModules(t.Context()), Warning, "ausearch")
	m = system(t, map[string]string{enforce: "0"})
	check(t, "SELinux permits", m.securityModules(t.Context()), OK, "permissive")
	m = system(t, map[string]string{"sys/module/apparmor/parameters/enabled": "Y\n"})
	check(t, "AppArmor", m.securityModules(t.Context()), OK, "AppArmor")
	if found := system(t, nil).securityModules(t.Context()); len(found) != 0 {
		t.Errorf("no security module: got %+v, want nothing", found)
	}
}

// A disk that is full is a problem. A disk that the growing cache would fill to more than 85 % is a
// warning.
func TestSpace(t *testing.T) {
	const gib = 1 << 30
	fine := space{size: 100 * gib, free: 60 * gib, files: 1e6, freeFiles: 9e5,
		limit: 20 * gib}
	for what, c := range map[string]struct {
		change func(*space)
		level  Level
		words  string
	}{
		"room":          {func(*space) {}, OK, "may still grow by 20GiB"},
		"cache is full": {func(s *space) { s.used, s.free = 20*gib, 20*gib }, OK, "grow by 0B"},
		"no room":       {func(s *space) { s.free = 20 * gib }, Warning, "--cache-size 10GiB"},
		"full":          {func(s *space) { s.free = 1 << 20 }, Problem, "lighter cache prune"},
		"no files":      {func(s *space) { s.freeFiles = 3 }, Problem, "3 files"},
		"read-only":     {func(s *space) { s.readOnly = true }, Problem, "remount"},
		"evicts early":  {func(s *space) { s.free, s.low = 20*gib, 17*gib }, OK, "grow by 3.0GiB"},
		"evicts late":   {func(s *space) { s.free, s.low = 20*gib, 5*gib }, Warning, "--disk-free-low 17%"},
		"other data":    {func(s *space) { s.free, s.low = 10*gib, 17*gib }, Warning, "remove other data"},
	} {
		m, now := system(t, nil), fine
		c.change(&now)
		check(t, what, m.judgeSpace(now), c.level, c.words)
	}
	for kind, level := range map[int64]Level{unix.EXT4_SUPER_MAGIC: OK, unix.XFS_SUPER_MAGIC: OK,
		unix.TMPFS_MAGIC:           Warning,
		unix.OVERLAYFS_SUPER_MAGIC: Problem, unix.NFS_SUPER_MAGIC: Problem, 0x1234: Warning} {
		m := system(t, nil)
		check(t, "file system", m.judgeFileSystem(kind), level, m.config.Root)
	}
}

// A hub that does not answer is a problem, or a warning if another hub answers. A key that is not
// pinned is a problem. A slow hub and a wrong clock are warnings.
func TestHubs(t *testing.T) {
	key := ed25519.PublicKey(make([]byte, ed25519.PublicKeySize))
	name, other := index.FormatKey(key), "ed25519:other"
	for what, c := range map[string]struct {
		seen   observation
		pinned []string
		level  Level
		words  string
	}{
		"pinned":    {observation{keys: []string{name}}, []string{other, name}, OK, "pinned"},
		"wrong key": {observation{keys: []string{name}}, []string{other}, Problem, "--hub-key " + name},
		"no key": {observation{keys: []string{name}, unlearnable: errors.New("not on this machine")}, nil, Problem,
			"--hub-key " + name},
		"learnable": {observation{keys: []string{name}}, nil, OK, "learned"},
		"gone":      {observation{url: "http://x", err: unix.ECONNREFUSED}, nil, Problem, "curl -v http://x"},
		"one of two": {observation{url: "http://x", err: unix.ECONNREFUSED}, nil, Warning,
			"another hub answers"},
		"slow":       {observation{keys: []string{name}, took: time.Second}, []string{name}, Warning, "needs 1s"},
		"fast clock": {observation{keys: []string{name}, offset: 5 * time.Minute}, []string{name}, Warning, "5m0s"},
		"slow clock": {observation{keys: []string{name}, offset: -time.Hour}, []string{name}, Warning, "1h0m0s"},
	} {
		m := system(t, nil)
		m.config.HubKeys, m.config.Root = c.pinned, t.TempDir()
		check(t, what, m.judgeHub(c.seen, what == "one of two"), c.level, c.words)
	}
	m := system(t, nil)
	m.config.Hubs = []string{"http://127.0.0.1:7070", "http://127.0.0.1:7071"}
	m.config.Root = t.TempDir()
	check(t, "one of several", m.judgeHub(observation{keys: []string{name}}, true), Problem, "--hub-key "+name)
}

func TestLearnedKeysArePinned(t *testing.T) {
	m := system(t, nil)
	m.config.Root = t.TempDir()
	if keys := m.pinned(); keys != nil {
		t.Errorf("before a key was learned: got %v, want none", keys)
	}
	if err := os.WriteFile(filepath.Join(m.config.Root, "hub.keys"), []byte("ed25519:a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if keys := m.pinned(); len(keys) != 1 || keys[0] != "ed25519:a" {
		t.Errorf("after a key was learned: got %v, want ed25519:a", keys)
	}
}

// imageStore is the status of an image store. Its trees are hidden for a reason, unless that is
// empty.
func imageStore(hidden string) *report.ImageStore {
	return &report.ImageStore{Trees: &directory.Status{Hidden: hidden}}
}

// Each problem in the status of a node gives a finding with its cause or its repair.
func TestNodes(t *testing.T) {
	m := system(t, nil)
	m.noStatus = control.ErrNoDaemon
	m.config.Root = t.TempDir()
	check(t, "no node", m.node(t.Context()), Problem, "lighter node --root "+m.config.Root)
	m = system(t, nil)
	m.noStatus = errors.New("only root may use it")
	check(t, "status only for root", m.node(t.Context()), Unchecked, "only root")
	fine := report.Status{Version: buildinfo.Release(), Cache: disk.Stats{}}
	for what, c := range map[string]struct {
		change func(*report.Status)
		level  Level
		words  string
	}{
		"all is well": {func(*report.Status) {}, OK, "has run since"},
		"old version": {func(s *report.Status) { s.Version = "v0.0.1" }, Warning, "v0.0.1"},
		"lost": {func(s *report.Status) {
			s.Lost = []report.Lost{{Tree: chunk.Sum(nil),
				Cause: "its map is cut off"}}
		}, Problem, "cut off"},
		"refused": {func(s *report.Status) {
			s.Refused = []report.Refused{{Chain: "sha256:ab", Images: []string{"a:1"},
				Cause: "it is not signed by a pinned key", Repair: "put the former key back"}}
		}, Problem, "former key"},
		"a leftover": {func(s *report.Status) {
			s.Leftovers = []durable.Leftover{{Path: "/n/x",
				Cause: "not permitted"}}
		},
			Warning, "lsattr -d /n/x"},
		"no bind": {func(s *report.Status) { s.Binds = []binds.Bind{{Dir: "/mnt", Name: "a:1", Lost: "no tree"}} },
			Problem, "lighter unmount /mnt"},
		"no directory": {func(s *report.Status) { s.Directory = &directory.Status{Hidden: "/lighter is not empty"} },
			Problem, "not empty"},
		"an image store": {func(s *report.Status) { s.ImageStore = imageStore("") }, OK, "--userns=auto cannot start"},
		"a hidden image store": {func(s *report.Status) { s.ImageStore = imageStore("no /dev/fuse") },
			Problem, "no /dev/fuse"},
		"no blobs": {func(s *report.Status) { s.Blobs = &blobs.Status{Problem: "policy is isolated"} },
			Problem, "isolated"},
		"unknown layers": {func(s *report.Status) { s.Blobs = &blobs.Status{Unknown: 3} },
			Warning, "lacks 3 layers"},
		"failed layer": {func(s *report.Status) { s.Blobs = &blobs.Status{Failure: "layer x: gone"} },
			Warning, "x: gone"},
		"not kept": {func(s *report.Status) { s.Keeper.Error = "it does not start" }, Problem,
			"no keeper holds the devices"},
		"no metrics": {func(s *report.Status) { s.NoMetrics = "address already in use" }, Warning, "already in use"},
		"not lazy": {func(s *report.Status) {
			s.Images = []report.ImageStatus{{Image: "a/b:1", Why: "the hub does not know it"}}
			s.Hubs = []origin.Health{{URL: "http://hub.test"}}
		}, Warning, "lighter add docker://a/b:1"},
		"not lazy without a hub": {func(s *report.Status) {
			s.Images = []report.ImageStatus{{Image: "a/b:1", Why: "nothing is attached to the image"}}
		}, Warning, "lighter attach --key FILE a/b:1"},
	} {
		s := fine
		c.change(&s)
		check(t, what, system(t, nil).judgeNode(&s), c.level, c.words)
	}
}

// The settings that a running node reports replace those of the configuration.
func TestStatusReplacesSettings(t *testing.T) {
	m := system(t, nil)
	m.useStatus(&report.Status{Root: "/r", Address: "/a", RemapIDs: true, MountMode: mount.Loop, Domain: "s",
		CAFile: "/ca", HubKeys: []string{"k"},
		Hubs: []origin.Health{{URL: "http://hub.test"}}, Cache: disk.Stats{Limit: 7 << 30}})
	c := m.config
	if c.Root != "/r" || c.Address != "/a" || !c.RemapIDs || c.MountMode != mount.Loop || c.Domain != "s" ||
		c.CAFile != "/ca" || c.CacheSize != 7<<30 ||
		len(c.Hubs) != 1 || c.Hubs[0] != "http://hub.test" || c.HubKeys[0] != "k" || !c.PlainHTTP {
		t.Errorf("got %+v, want the settings of the status", c)
	}
}

// Each problem in the figures of a cache gives a finding with its cause or its repair.
func TestCaches(t *testing.T) {
	const gib = 1 << 30
	for what, c := range map[string]struct {
		change func(*disk.Stats)
		level  Level
		words  string
	}{
		"all is well": {func(*disk.Stats) {}, OK, "1.0GiB are pinned, 2.0GiB were evicted"},
		"none":        {func(c *disk.Stats) { c.Absent = "it is locked" }, Problem, "every minute: it is locked"},
		"no writes":   {func(c *disk.Stats) { c.OffUntil = time.Now().Add(time.Minute) }, Problem, "refuses writes"},
		"no reads":    {func(c *disk.Stats) { c.NoReads = time.Now().Add(time.Minute) }, Problem, "fails reads"},
		"short":       {func(c *disk.Stats) { c.Room = 9 * gib }, Warning, "may use 9.0GiB of its limit of 20GiB"},
		"pins":        {func(c *disk.Stats) { c.Pinned = 21 * gib }, Warning, "lighter cache unpin"},
		"too small":   {func(c *disk.Stats) { c.Evicted = 50 * gib }, Warning, "--cache-size 40GiB"},
		"damaged": {func(c *disk.Stats) { c.Damaged, c.Unread = 3, 4 }, Warning,
			"3 chunks damaged and failed to read 4"},
		"hangs":       {func(c *disk.Stats) { c.ReadsHang = time.Now() }, Problem, "does not answer reads"},
		"writes hang": {func(c *disk.Stats) { c.WritesHang = time.Now() }, Problem, "does not answer writes"},
		"has hung":    {func(c *disk.Stats) { c.Hung = 6 }, Warning, "did not answer 6"},
		"writes fail": {func(c *disk.Stats) { c.Failed = 5 }, Warning, "failed to write 5"},
	} {
		stats := disk.Stats{Limit: 20 * gib, Room: 20 * gib, Used: 3 * gib, Pinned: gib, Evicted: 2 * gib}
		c.change(&stats)
		check(t, what, judgeCache(stats, time.Now()), c.level, c.words)
	}
}

// If containerd reports that it has no snapshotter lighter, or that the snapshotter failed, this is
// a problem.
func TestSnapshotterInContainerd(t *testing.T) {
	for what, c := range map[string]struct {
		snapshotters map[string]string
		level        Level
		words        string
	}{
		"there":   {map[string]string{"overlayfs": "", "lighter": ""}, OK, "lighter"},
		"missing": {map[string]string{"overlayfs": ""}, Problem, "lighter install containerd"},
		"failed":  {map[string]string{"lighter": "no such file"}, Problem, "no such file"},
	} {
		info := containerd.Info{Version: "v2.4.2", Snapshotters: c.snapshotters}
		check(t, what, new(machine).judgeContainerd(info), c.level, c.words)
	}
}

// A removal that has failed is found.
func TestRemoval(t *testing.T) {
	m := system(t, map[string]string{RemovalFile: "the snapshotter is in use: pod a/b\nremove it\n"})
	check(t, "failed", m.removal(t.Context()), Warning, "pod a/b; remove it")
	if found := system(t, nil).removal(t.Context()); len(found) != 0 {
		t.Errorf("no removal: got %+v, want nothing", found)
	}
}
