package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"lighter/install"
	"lighter/node"
	"lighter/node/doctor"
)

// fixture is a containerd of some version with a main file in a directory of its own.
type fixture struct {
	t      *testing.T
	target *Target
	found  found
	dir    string
}

func newFixture(t *testing.T, version, text string) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir(), target: &Target{Node: node.DefaultConfig()}}
	f.found.Version, f.found.number = version, doctor.Release(version)
	f.found.Config = f.path("config.toml")
	if text != "-" {
		f.write("config.toml", text)
	}
	return f
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fixture) write(name, text string) {
	f.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(f.path(name)), 0o755),
		os.WriteFile(f.path(name), []byte(text), 0o644)); err != nil {
		f.t.Fatal(err)
	}
}

// text returns the contents of a file; "-": there is none.
func (f *fixture) text(name string) string {
	b, err := os.ReadFile(f.path(name))
	if err != nil {
		return "-"
	}
	return string(b)
}

func (f *fixture) install() ([]install.Change, error) {
	l, err := f.target.read(f.found)
	if err != nil {
		return nil, err
	}
	return l.install(l.wanted(f.target, f.found))
}

func (f *fixture) uninstall() ([]install.Change, error) {
	l, err := f.target.read(f.found)
	if err != nil {
		return nil, err
	}
	return l.uninstall(), nil
}

// apply carries out changes, and returns how many there were.
func (f *fixture) apply(plan func() ([]install.Change, error)) int {
	f.t.Helper()
	changes, err := plan()
	if err == nil {
		_, err = install.Machine{}.Apply(f.t.Context(), &install.Plan{Changes: changes}, install.Options{})
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return len(changes)
}

// values returns the values of a document.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	v := map[string]any{}
	if err := toml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return v
}

// The files in deploy/containerd have what the installer writes for their versions.
func TestShippedFilesAreWhatIsInstalled(t *testing.T) {
	for name, versions := range map[string][]string{"1.6": {"v1.6.20~ds1"}, "1.7": {"v1.7.29"}, "2.0": {"v2.0.7"},
		"2.1": {"v2.1.5", "v2.2.0", "v2.4.2"}} {
		shipped, err := os.ReadFile("../../deploy/containerd/config-" + name + ".toml")
		if err != nil {
			t.Fatal(err)
		}
		for _, version := range versions {
			f := newFixture(t, version, "-")
			f.target.CRI = true
			f.apply(f.install)
			got, want := values(t, f.text("config.toml")), values(t, string(shipped))
			if !reflect.DeepEqual(got, want) {
				t.Errorf("containerd %s: got\n%v\nwant, as in the shipped file,\n%v", version, got, want)
			}
		}
	}
}

// The part of the extension of Talos is what the installer would write for the kubelet's pulls,
// below the settings that Talos has.
func TestTalosPartIsWhatIsInstalled(t *testing.T) {
	const talos = "[plugins.'io.containerd.cri.v1.images']\n  use_local_image_pull = true\n"
	part, err := os.ReadFile("../../deploy/image/talos/10-lighter.part")
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, "v2.1.5", "version = 3\n"+talos)
	f.target.CRI = true
	f.apply(f.install)
	got, want := values(t, f.text("config.toml")), values(t, "version = 3\n"+string(part))
	images := want["plugins"].(map[string]any)["io.containerd.cri.v1.images"].(map[string]any)
	images["use_local_image_pull"] = true
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the installer writes\n%v\nand the part, with Talos' setting, has\n%v", got, want)
	}
}

// configurations are as they are found on machines: made by hand, by kubeadm and by cloud images.
var configurations = map[string]string{
	"empty": "", "comment": "# see containerd-config.toml(5)\n", "no version": "root = '/data'\n",
	"version alone": "version = 2\n", "no end of line": "version = 2\nroot = '/data'",
	"by hand": "# of the site\nversion = 2\n\n[grpc]\n  address = \"/run/containerd/containerd.sock\" # as usual\n\n" +
		"[plugins]\n\t[plugins.\"io.containerd.grpc.v1.cri\"]\n\t\tsandbox_image = \"mirror/pause:3.9\"\n",
	"kubeadm": "disabled_plugins = []\nimports = []\nversion = 2\n[plugins]\n" +
		"  [plugins.\"io.containerd.grpc.v1.cri\".containerd]\n    snapshotter = \"overlayfs\" # default\n" +
		"    disable_snapshot_annotations = true\n" +
		"    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n" +
		"      runtime_type = \"io.containerd.runc.v2\"\n" +
		"      [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n" +
		"        SystemdCgroup = true\n[proxy_plugins]\n\n[timeouts]\n",
	"cloud": "version = 2\nroot = \"/var/lib/containerd\"\n[grpc]\naddress = \"/run/containerd/containerd.sock\"\n" +
		"[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"nvidia\"\n" +
		"discard_unpacked_layers = true\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\n" +
		"config_path = \"/etc/containerd/certs.d:/etc/docker/certs.d\"\n" +
		"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\nruntime_type = \"nvidia\"\n",
	"new": "version = 3\n[plugins.'io.containerd.cri.v1.images']\n  discard_unpacked_layers = true\n" +
		"  [plugins.'io.containerd.cri.v1.images'.pinned_images]\n    sandbox = 'pause:3.10'\n" +
		"[plugins.'io.containerd.transfer.v1.local']\n  max_concurrent_unpacks = 4\n" +
		"  [[plugins.'io.containerd.transfer.v1.local'.unpack_config]]\n    differ = ''\n" +
		"    platform = 'linux/amd64'\n    snapshotter = 'overlayfs'\n",
	"dotted": "version = 3\nplugins.'io.containerd.cri.v1.images'.snapshotter = 'native'\n" +
		"proxy_plugins.other.type = 'snapshot'\nproxy_plugins.other.address = '/run/other.sock'\n",
	"another node": "version = 2\n[proxy_plugins.lighter]\n  type = \"snapshot\"\n" +
		"  address = \"/run/old.sock\" # mine\n" +
		"  capabilities = [\"x\"]\n",
}

// Each configuration gets what its containerd needs, keeps the rest, and is byte for byte the
// original after the removal. A second installation changes nothing.
func TestConfigurations(t *testing.T) {
	for name, text := range configurations {
		for _, version := range []string{"v1.6.20", "v1.7.27", "v2.0.5", "v2.1.4", "v2.4.2"} {
			for _, cri := range []bool{false, true} {
				format := values(t, text)["version"]
				if doctor.Release(version) < 2_00 && format == int64(3) || cri && name == "no version" {
					continue // containerd refuses it, or lighter install does
				}
				t.Run(name+" "+version, func(t *testing.T) { installAndRemove(t, version, text, cri) })
			}
		}
		crlf := strings.ReplaceAll(text, "\n", "\r\n")
		t.Run(name+" with CRLF", func(t *testing.T) { installAndRemove(t, "v2.4.2", crlf, false) })
	}
}

func installAndRemove(t *testing.T, version, text string, cri bool) {
	t.Parallel() // each waits for the disk
	f := newFixture(t, version, text)
	f.target.CRI = cri
	f.apply(f.install)
	changed := f.text("config.toml")
	findings, err := doctor.JudgeContainerd([]byte(changed), version, f.target.Node)
	problem := func(f doctor.Finding) bool { return f.Level == doctor.Problem }
	if err != nil || slices.ContainsFunc(findings, problem) {
		t.Errorf("the doctor: %+v, %v; want no problem in\n%s", findings, err, changed)
	}
	if !contains(values(t, changed), values(t, text)) {
		t.Errorf("the new configuration lacks something of the old one:\n%s\n%s", text, changed)
	}
	if again := f.apply(f.install); again != 0 {
		t.Errorf("a second installation makes %d changes, want none", again)
	}
	if f.apply(f.uninstall); f.text("config.toml") != text {
		t.Errorf("after the removal: got %q, want %q", f.text("config.toml"), text)
	}
}

// replaced are the keys of the configurations whose values the installer may replace.
var replaced = []string{"address", "capabilities", "snapshotter", "disable_snapshot_annotations"}

// contains reports whether a value has all of another one, except for replaced keys.
func contains(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		table, ok := got.(map[string]any)
		for key, value := range want {
			ok = ok && (contains(table[key], value) || slices.Contains(replaced, key))
		}
		return ok
	case []any:
		list, ok := got.([]any)
		return ok && len(list) >= len(want) && reflect.DeepEqual(list[:len(want)], want)
	}
	return reflect.DeepEqual(got, want)
}

// Without a configuration, one is made, and is removed again, with its directory if that is new.
func TestNoConfiguration(t *testing.T) {
	f := newFixture(t, "v2.4.2", "-")
	for _, name := range []string{"config.toml", "new/config.toml"} {
		f.found.Config = f.path(name)
		f.apply(f.install)
		if v := values(t, f.text(name)); v["version"] != int64(3) {
			t.Errorf("%s: version: got %v, want 3", name, v["version"])
		}
		if again := f.apply(f.install); again != 0 {
			t.Errorf("%s: a second installation makes %d changes, want none", name, again)
		}
		f.apply(f.uninstall)
		if entries, err := os.ReadDir(f.dir); err != nil || len(entries) > 0 {
			t.Errorf("%s: after the removal there is %v (%v), want nothing", name, entries, err)
		}
	}
	// What a user adds to the new file stays.
	f.found.Config = f.path("config.toml")
	f.apply(f.install)
	f.write("config.toml", f.text("config.toml")+"[debug]\n  level = 'info'\n")
	if f.apply(f.uninstall); f.text("config.toml") != "[debug]\n  level = 'info'\n" {
		t.Errorf("after the removal: got %q, want the user's lines", f.text("config.toml"))
	}
}

// A containerd that merges imported files gets a file of its own, of the same version.
func TestImportedFile(t *testing.T) {
	main := "version = 3\nimports = ['conf.d/*.toml'] # mine\n"
	f := newFixture(t, "v2.4.2", main)
	f.target.CRI = true
	for _, existing := range []bool{false, true} {
		if existing {
			f.write("conf.d/10-site.toml", "version = 3\n[plugins.'io.containerd.cri.v1.images']\n"+
				"snapshotter = 'native'\n[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]\n"+
				"platform = 'linux'\nsnapshotter = 'native'\n")
		}
		f.target.Node.Address = "/run/lighter/lighter.sock"
		f.apply(f.install)
		own := values(t, f.text("conf.d/"+ownFile))
		unpack := own["plugins"].(map[string]any)[transferPlugin].(map[string]any)["unpack_config"].([]any)
		if f.text("config.toml") != main || own["version"] != int64(3) || existing != (len(unpack) == 1) {
			t.Errorf("got %q and our file %v, want the main file as it was, and version 3 in ours",
				f.text("config.toml"), own)
		}
		if again := f.apply(f.install); again != 0 {
			t.Errorf("a second installation makes %d changes, want none", again)
		}
		f.target.Node.Address = "/run/x.sock"
		if n := f.apply(f.install); n != 1 || !strings.Contains(f.text("conf.d/"+ownFile), "/run/x.sock") {
			t.Errorf("with another address: %d changes, file %q; want the new address", n, f.text("conf.d/"+ownFile))
		}
		f.apply(f.uninstall)
		if _, err := os.Stat(f.path("conf.d")); f.text("conf.d/"+ownFile) != "-" || (err == nil) != existing {
			t.Errorf("after the removal: our file %q, directory: %v; want neither, if others have no files there",
				f.text("conf.d/"+ownFile), err)
		}
	}
	// If the user imports our file by its name, it goes, and the main file gets the settings.
	f.apply(f.install)
	f.write("config.toml", "version = 3\nimports = ['conf.d/"+ownFile+"']\n")
	if f.apply(f.install); !strings.Contains(f.text("conf.d/"+ownFile), "[proxy_plugins.lighter]") {
		t.Errorf("without a pattern: got our file %q, want it as it was", f.text("conf.d/"+ownFile))
	}
}

// What the user has set already is not set again.
func TestConfiguredByHand(t *testing.T) {
	shipped, err := os.ReadFile("../../deploy/containerd/config-2.1.toml")
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, "v2.4.2", "version = 3\nimports = ['conf.d/*.toml']\n")
	f.write("conf.d/node.toml", string(shipped))
	if n := f.apply(f.install); n != 0 {
		t.Errorf("got %d changes, want none", n)
	}
	if n := f.apply(f.uninstall); n != 0 {
		t.Errorf("the removal makes %d changes, want none", n)
	}
}

// The capabilities are the user's, with those that the node needs.
func TestCapabilities(t *testing.T) {
	f := newFixture(t, "v2.4.2", "version = 3\n[proxy_plugins.lighter]\ncapabilities = ['x', 'remap-ids']\n")
	for remap, want := range map[bool]string{false: "['rebase', 'x']", true: "['rebase', 'x', 'remap-ids']"} {
		f.target.Node.RemapIDs = remap
		f.apply(f.install)
		if text := f.text("config.toml"); !strings.Contains(text, "\ncapabilities = "+want+"\n") {
			t.Errorf("remap_ids %t: want %s in\n%s", remap, want, text)
		}
	}
}

// What cannot be edited, or would have no effect, is refused.
func TestRefusals(t *testing.T) {
	const cri = "[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'x'\n"
	for want, c := range map[string]struct{ version, main, imported string }{
		"no valid TOML: line 2":  {"v2.4.2", "version = 3\n[a\n", ""},
		"can be edited line":     {"v2.4.2", "version = 3\nproxy_plugins = {}\n", ""},
		"another program writes": {"v2.4.2", "# Generated. DO NOT EDIT.\nversion = 3\n", ""},
		"config migrate":         {"v1.7.0", "root = '/x'\n", ""},
		"not pairs":              {"v2.4.2", "# <<< lighter install containerd\n", ""},
		"overrides snapshotter in [plugins.io.containerd.grpc": {"v1.7.0", "version = 2\nimports = ['x.toml']\n",
			"version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = 'x'\n"},
		"overrides type in [proxy_plugins": {"v1.7.0", "version = 2\nimports = ['x.toml']\n",
			"version = 2\n[proxy_plugins.lighter]\naddress = '/x'\n"},
		"overrides snapshotter in [plugins.io.containerd.cri": {"v2.4.2", "version = 3\nimports = ['*.toml']\n",
			"version = 3\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'x'\n"},
		"imported file": {"v2.4.2", "version = 3\nimports = ['x.toml']\n", "[broken\n"},
	} {
		f := newFixture(t, c.version, c.main)
		f.target.CRI = true
		if c.imported != "" {
			f.write("x.toml", c.imported)
		}
		if _, err := f.install(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want a refusal with %q", c.main, err, want)
		}
	}
	// In a file of version 2, containerd 2.x converts a section of CRI only if it has runtimes.
	f := newFixture(t, "v2.4.2", "version = 2\nimports = ['conf.d/*.toml']\n"+cri+
		"[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\nruntime_type = 'x'\n")
	f.target.CRI = true
	if f.apply(f.install); !strings.Contains(f.text("config.toml"), "snapshotter = 'lighter'") {
		t.Errorf("want the snapshotter in the main file, got\n%s", f.text("config.toml"))
	}
}

func TestVersions(t *testing.T) {
	for out, want := range map[string]string{
		"containerd github.com/containerd/containerd/v2 v2.4.2 abc\n":                   "v2.4.2",
		"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1\n": "v1.6.20~ds1",
		"containerd containerd.io 1.7.24 88bf\n":                                        "v1.7.24", "": "",
	} {
		if got := version(out); got != want {
			t.Errorf("%q: got %s, want %s", out, got, want)
		}
	}
}
