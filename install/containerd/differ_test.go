package containerd

import (
	"reflect"
	"strings"
	"testing"

	"lighter/node/doctor"
)

// With the differ, each configuration has containerd ask the node before its own differ, and is
// byte for byte the original after the removal. Without it again, the other lines stay.
func TestDiffer(t *testing.T) {
	for name, text := range configurations {
		for _, version := range []string{"v1.7.27", "v2.4.2"} {
			if doctor.Release(version) < 2_00 && values(t, text)["version"] == int64(3) {
				continue // containerd refuses it
			}
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel() // each waits for the disk
				f := newFixture(t, version, text)
				f.apply(f.install)
				plain := f.text("config.toml")
				f.target.Differ = true
				f.apply(f.install)
				with := f.text("config.toml")
				if !asksNode(t, f, with) {
					t.Errorf("want containerd to ask the node first, with\n%s", with)
				}
				if again := f.apply(f.install); again != 0 {
					t.Errorf("a second installation makes %d changes, want none", again)
				}
				f.target.Differ = false
				if f.apply(f.install); f.text("config.toml") != plain {
					t.Errorf("without --differ again: got\n%s\nwant\n%s", f.text("config.toml"), plain)
				}
				f.target.Differ = true
				f.apply(f.install)
				if f.apply(f.uninstall); f.text("config.toml") != text {
					t.Errorf("after the removal: got %q, want %q", f.text("config.toml"), text)
				}
			})
		}
	}
}

// asksNode reports whether the doctor says of a configuration that it asks the node's differ.
func asksNode(t *testing.T, f *fixture, text string) bool {
	t.Helper()
	findings, err := doctor.JudgeContainerd([]byte(text), f.found.Version, f.target.Node)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range findings {
		if strings.HasPrefix(found.What, doctor.DifferUses) {
			return true
		}
	}
	return false
}

// The user's list of differs is kept behind the node's, in the file that has it: containerd appends
// the lists of imported files. Each further element of unpack_config names containerd's differ.
func TestDifferKeepsTheList(t *testing.T) {
	const main = "version = 3\nimports = ['conf.d/*.toml']\n"
	for text, own := range map[string]bool{main: true,
		main + "[plugins.'io.containerd.service.v1.diff-service']\n  default = ['erofs', 'walking'] # mine\n": false} {
		f := newFixture(t, "v2.4.2", text)
		f.target.Differ = true
		f.apply(f.install)
		file, want := "config.toml", []any{"lighter-diff", "erofs", "walking"}
		if own {
			file, want = "conf.d/"+ownFile, []any{"lighter-diff", "walking"}
		}
		plugins := values(t, f.text(file))["plugins"].(map[string]any)
		got := plugins["io.containerd.service.v1.diff-service"].(map[string]any)["default"]
		unpack := plugins[transferPlugin].(map[string]any)["unpack_config"].([]any)
		if !reflect.DeepEqual(got, want) || len(unpack) != 2 || unpack[1].(map[string]any)["differ"] != walking {
			t.Errorf("got the differs %v and unpack_config %v in %s, want %v, and walking", got, unpack, file, want)
		}
		if f.apply(f.uninstall); f.text("config.toml") != text || f.text("conf.d/"+ownFile) != "-" {
			t.Errorf("after the removal: got %q, want %q", f.text("config.toml"), text)
		}
	}
}

// A containerd that cannot have the node's differ, or would unpack with it, is refused.
func TestDifferIsRefused(t *testing.T) {
	const unpack = "version = 3\n[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]\n" +
		"platform = 'linux'\nsnapshotter = 'native'\n"
	for _, c := range []struct{ version, main, want string }{
		{"v1.6.20~ds1", "version = 2\n", "1.7.4 does"}, {"v1.7.3", "version = 2\n", "1.7.4 does"},
		{"v1.7.4", "version = 2\n", ""}, {"v2.0.5", unpack, "unpack_config for native names no differ"},
		{"v2.0.5", unpack + "differ = 'walking'\n", ""}, {"v2.4.2", unpack, ""},
		{"v2.4.2", "version = 3\n[plugins.'io.containerd.service.v1']\nx = 1\n" +
			"[plugins]\n'io.containerd.service.v1.diff-service' = {}\n", "can be edited line by line"},
	} {
		f := newFixture(t, c.version, c.main)
		f.target.Differ = true
		_, err := f.install()
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("containerd %s, %q: got %v, want a refusal with %q", c.version, c.main, err, c.want)
		}
	}
}
