package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/node"
)

const (
	testAddress = "/run/lighter/lighter.sock"
	testRoot    = "/var/lib/lighter"
)

// testInstall is the command that repairs a configuration of containerd.
const testInstall = "lighter install containerd"

// proxyLines returns the lines that configure a node in containerd.
func proxyLines(remapIDs bool) string {
	capabilities := `"rebase"`
	if remapIDs {
		capabilities += `, "remap-ids"`
	}
	return fmt.Sprintf(`[proxy_plugins.lighter]
  type = "snapshot"
  address = %q
  capabilities = [%s]
  [proxy_plugins.lighter.exports]
    root = %q
    enable_remote_snapshot_annotations = "true"`, testAddress, capabilities, testRoot)
}

// testDiff has the lines for the node's differ.
const testDiff = `[proxy_plugins.lighter-diff]
  type = "diff"
  address = "` + testAddress + `"
[plugins."io.containerd.service.v1.diff-service"]
  default = ["lighter-diff", "walking"]`

const unpackLines = `[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "lighter"`

// rightConfig returns the recommended configuration. version is the version of the format of
// containerd's configuration.
func rightConfig(version string) string {
	return "version = " + version + "\n" + proxyLines(false) + "\n" + unpackLines + "\n" +
		testDiff + "\n"
}

// bad returns the findings that are not OK.
func bad(findings []Finding) (bad []Finding) {
	for _, f := range findings {
		if f.Level != OK {
			bad = append(bad, f)
		}
	}
	return bad
}

// The recommended configuration, for each version of containerd, gives only OK findings.
func TestRightConfigs(t *testing.T) {
	for version, text := range map[string]string{
		"v2.4.2": rightConfig("4"), "v2.1.0": rightConfig("3") +
			"[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'lighter'\n",
		"v2.0.1": rightConfig("3"), "v1.7.24": "version = 2\n" + proxyLines(false) + "\n" + testDiff,
		"v1.7.3": "version = 2\n" + proxyLines(false), "v1.6.20": "version = 2\n" + proxyLines(false),
		"": "version = 2\n" + proxyLines(false),
		// As `containerd config dump` of 1.6 prints it: without capabilities and exports.
		"v1.6.20~ds1": "version = 2\n[proxy_plugins]\n  [proxy_plugins.lighter]\n    address = \"" + testAddress +
			"\"\n    type = \"snapshot\"\n",
	} {
		findings, err := judgeConfig([]byte(text), version,
			nodeSettings{address: testAddress, root: testRoot, trustImage: true})
		if err != nil || len(bad(findings)) > 0 || len(findings) == 0 {
			t.Errorf("%s: got %+v, %v; want only ok", version, findings, err)
		}
	}
}

// A configuration with one mistake gives one warning or problem, which names the mistake and its
// repair.
func TestWrongConfigs(t *testing.T) {
	right := rightConfig("3")
	without := func(line string) string {
		if !strings.Contains(right, line) {
			t.Fatalf("the configuration has no %q", line)
		}
		return strings.Replace(right, line, "", 1)
	}
	instead := func(old, now string) string {
		if !strings.Contains(right, old) {
			t.Fatalf("the configuration has no %q", old)
		}
		return strings.ReplaceAll(right, old, now)
	}
	const (
		cri3 = "[plugins.\"io.containerd.cri.v1.images\"]\n  snapshotter = \"lighter\"\n"
		cri2 = "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"lighter\"\n"
	)
	const disabled = `remove "io.containerd.transfer.v1.local" from disabled_plugins`
	for what, c := range map[string]struct {
		text, version string
		level         Level
		words, repair string
	}{
		"no proxy plugin": {"version = 3\n" + unpackLines, "v2.0.0", Problem, "no proxy plugin lighter", testInstall},
		"another name": {strings.ReplaceAll(instead("proxy_plugins.lighter", "proxy_plugins.lazy"), "lazy-diff",
			"lighter-diff"), "v2.0.0", Problem, "is called lazy", testInstall},
		"another address": {instead(testAddress, "/run/x.sock"), "v2.0.0", Problem, "/run/x.sock", testInstall},
		"another type": {instead(`type = "snapshot"`, `type = "content"`), "v2.0.0", Problem, `"content"`,
			testInstall},
		"no rebase": {without(`capabilities = ["rebase"]`), "v2.1.0", Warning, "rebase", testInstall},
		"remap-ids": {instead(`["rebase"]`, `["rebase", "remap-ids"]`), "v2.0.0", Problem, "wrong owners",
			testInstall},
		"no exported root": {without(`root = "` + testRoot + `"`), "v2.0.0", Warning, "kubelet", testInstall},
		"no annotations": {without(`enable_remote_snapshot_annotations = "true"`), "v2.0.0", Warning, "name images",
			testInstall},
		"not unpacked": {without(unpackLines), "v2.1.0", Problem, "unpack_config", testInstall},
		"for another platform": {instead(`platform = "linux"`, `platform = "windows"`), "v2.1.0", Problem,
			"unpack_config", testInstall},
		"no transfer service": {"disabled_plugins = ['io.containerd.transfer.v1.local']\n" + right, "v2.0.0", Warning,
			"--local", disabled},
		"a differ that is not asked": {without(`default = ["lighter-diff", "walking"]`), "v2.1.0", Warning,
			"never asks", testInstall},
		"a differ that is asked last": {instead(`["lighter-diff", "walking"]`, `["walking", "lighter-diff"]`), "v2.1.0",
			Warning, "never asks", testInstall},
		"a differ alone": {instead(`["lighter-diff", "walking"]`, `["lighter-diff"]`), "v2.1.0", Problem,
			"unpacks no layer", testInstall},
		"CRI without names": {right + cri3 + "disable_snapshot_annotations = true", "v2.0.0", Warning,
			"CRI uses lighter and does not name images", testInstall},
		"CRI says nothing": {right + cri3, "v2.0.0", Warning, "CRI uses lighter and does not name images",
			testInstall},
		"CRI pulls by itself": {right + cri3 + "use_local_image_pull = true", "v2.1.0", Warning,
			"CRI uses lighter and does not name images", testInstall},
		"1.7 with another root": {"version = 2\n" + strings.ReplaceAll(proxyLines(false), testRoot, "/x"), "v1.7.0",
			Warning, "kubelet", testInstall},
		"old CRI": {"version = 2\n" + proxyLines(false) + "\n" + cri2, "v1.7.0",
			Warning, "CRI uses lighter and does not name images", testInstall},
	} {
		for _, trustImage := range []bool{false, true} {
			level := c.level
			if trustImage && strings.Contains(c.words, "name images") {
				// Without names, TrustImage lets no image be lazy, and a manifest can name another
				// image in its annotations.
				level = Problem
			}
			findings, err := judgeConfig([]byte(c.text), c.version,
				nodeSettings{address: testAddress, root: testRoot, trustImage: trustImage, install: testInstall})
			wrong, repair := bad(findings), c.repair
			for _, kept := range []struct{ line, flag string }{{cri2, " --cri"}, {cri3, " --cri"},
				{`address = "` + testAddress + "\"\n[plugins.\"io.containerd.service", " --differ"}} {
				if repair != disabled && strings.Contains(c.text, kept.line) {
					repair += kept.flag // without it, the repair would take these lines away
				}
			}
			if err != nil || len(wrong) != 1 || wrong[0].Level != level || !strings.Contains(wrong[0].What,
				c.words) || wrong[0].Repair != repair {
				t.Errorf("%s, trust image %v: got %+v, %v; want %s with %q and %q", what, trustImage, wrong, err, level,
					c.words, repair)
			}
		}
	}
	if _, err := judgeConfig([]byte("version = = 3"), "", nodeSettings{}); err == nil {
		t.Error("invalid TOML: got no error")
	}
}

// The configurations in deploy/ are right for their versions of containerd. A configuration is
// wrong if only one of node and containerd maps owners.
func TestShippedConfigs(t *testing.T) {
	for name, versions := range map[string][]string{"1.6": {"v1.6.20"}, "1.7": {"v1.7.29"}, "2.0": {"v2.0.7"},
		"2.1": {"v2.1.5", "v2.4.2"}} {
		text, err := os.ReadFile("../../deploy/containerd/config-" + name + ".toml")
		if err != nil {
			t.Fatal(err)
		}
		for _, version := range versions {
			findings, err := judgeConfig(text, version,
				nodeSettings{address: testAddress, root: testRoot, trustImage: true})
			if wrong := bad(findings); err != nil || len(wrong) != 0 {
				t.Errorf("%s, containerd %s: got %+v, %v; want only ok", name, version, wrong, err)
			}
		}
	}
	for _, nodeMaps := range []bool{false, true} {
		for _, containerdMaps := range []bool{false, true} {
			text := "version = 3\n" + proxyLines(containerdMaps) + "\n" + unpackLines
			findings, err := judgeConfig([]byte(text), "v2.4.2",
				nodeSettings{address: testAddress, root: testRoot, remapIDs: nodeMaps})
			if wrong := bad(findings); err != nil || (len(wrong) == 0) != (nodeMaps == containerdMaps) {
				t.Errorf("remap-ids of node %v, of containerd %v: got %+v, %v; want a problem only if they differ",
					nodeMaps, containerdMaps, wrong, err)
			}
		}
	}
}

// configOf finds the path of the configuration in containerd's arguments.
func TestContainerdsArguments(t *testing.T) {
	for line, want := range map[string]string{
		"containerd": DefaultConfig, "containerd --config /a": "/a", "containerd -c /a": "/a",
		"containerd --config=/a": "/a", "containerd -c=/a": "/a",
		"containerd --log-level debug": DefaultConfig, "containerd --log-level debug -c /a --root /b": "/a",
		"containerd --config": DefaultConfig, "containerd --config=/a --config /b": "/b",
	} {
		if got := configOf(strings.Fields(line)); got != want {
			t.Errorf("%s: got %s, want %s", line, got, want)
		}
	}
}

// release parses a version. For other texts it returns a release of the given configuration format.
func TestReleases(t *testing.T) {
	for version, want := range map[string]int{"v2.1.4": 2_01, "v1.6.20~ds1": 1_06, "v2.10.0-rc.1": 2_10, "": 2_03,
		"dev": 2_03} {
		if got := release(version, 3); got != want {
			t.Errorf("%q: got %d, want %d", version, got, want)
		}
	}
	if got := release("", 2); got != 1_07 {
		t.Errorf("a configuration of version 2: got %d, want 107", got)
	}
}

// The command that repairs containerd's configuration names what it could not find by itself.
func TestRepairOfContainerd(t *testing.T) {
	m := &machine{config: node.DefaultConfig()}
	if got := m.install(); got != installContainerd {
		t.Errorf("got %q, want %q", got, installContainerd)
	}
	m.config.Root, m.config.Containerd = "/data", "/run/x.sock"
	if got, want := m.install(), installContainerd+" --root /data --containerd /run/x.sock"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A machine without containerd is all right if tools find images by the node in another way.
func TestNoContainerd(t *testing.T) {
	config := node.Config{Address: testAddress, Containerd: filepath.Join(t.TempDir(), "containerd.sock")}
	for _, c := range []struct {
		what     string
		store    string
		isConfig bool
		want     Level
	}{
		{"an image store", "/var/lib/lighter-images", false, Unchecked},
		{"nothing else", "", false, Problem},
		{"an image store, and containerd is configured", "/var/lib/lighter-images", true, Problem},
	} {
		m := &machine{config: config, system: t.TempDir()}
		m.config.ImageStore = c.store
		if c.isConfig {
			if err := os.MkdirAll(filepath.Join(m.system, DefaultConfig), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if found := m.containerd(t.Context()); found[0].Level != c.want {
			t.Errorf("%s: %+v, want %v", c.what, found, c.want)
		}
	}
}
