package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/test/testkit/printed"
)

// lighter runs the command as a shell would and returns what it printed.
func lighter(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	stdout, stderr = printed.By(t, func() { code = command.Run(t.Context(), rootCommand(), args, exitCode) })
	return code, stdout, stderr
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	var visit func(cmd *cobra.Command)
	seen := 0
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		if cmd.HasSubCommands() && cmd.RunE == nil {
			return
		}
		seen++
		if cmd.Short == "" || !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s has no help with an example", cmd.CommandPath())
		}
	}
	visit(rootCommand())
	if seen < 12 {
		t.Errorf("%d commands were checked, want at least 12", seen)
	}
	if code, out, _ := lighter(t, "add", "--help"); code != 0 || !strings.Contains(out, "docker-archive:") {
		t.Errorf("add --help: exit %d, %q; want exit 0 and the help", code, out)
	}
}

// Wrong arguments: exit code 2 and one line that says what to do.
func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{
		{"add"}, {"add", "a", "b", "c"}, {"add", "ftp://x"}, {"add", "oci:/nowhere", "name"},
		{"images", "--no-such-flag"}, {"images", "x"},
		{"mount", "name"}, {"mount", "name", "/no/such/dir"}, {"mount", "Upper/case:1", "/"},
		{"trace", "import", "name", "/no/such/file"}, {"mirror"}, {"mirror", "--hub-key", "x", "/no/such/dir"},
		{"verify"}, {"rm"}, {"inspect"}, {"config"}, {"config", "node", "--config", "/no/such/file"},
		{"images", "--hub", "ftp://x"}, {"images", "--hub", "http://hub.example.org"},
		{"node", "--cache-size", "much"}, {"node", "--root", "relative"},
		{"node", "--cache-size", "1MB"}, {"node", "--log-level", "loud"}, {"node", "--log-format", "xml"},
		{"node", "--http-address", "9470"}, {"node", "--http-address", "127.0.0.1:99999"},
		{"node", "--address", "relative.sock"}, {"node", "--containerd", "relative.sock"}, {"node", "--hub", "ftp://x"},
		{"node", "--hub", "http://hub.example.org"}, {"node", "--hub-key", "x"},
		{"node", "--hub", "http://127.0.0.1:1", "--hub", "http://127.0.0.1:1/"},
		{"node", "--root", t.TempDir(), "--hub", "https://hub.example.org"}, // without its key
		{"node", "--disk-free-low", "17"}, {"node", "--disk-free-low", "30%"},
		{"node", "--disk-free-low", "2GiB", "--disk-free-high", "1GiB"}, {"config", "node", "--log-format", "xml"},
		{"hub", "--log-level", "loud"}, {"hub", "--log-format", "xml"}, {"hub", "--listen", "0.0.0.0:7199"},
		{"hub", "--listen", "0.0.0.0:7199", "--plain-http"},
		{"install", "no-such"}, {"install", "containerd", "x"}, {"uninstall", "systemd", "--restart"},
		{"install", "containerd", "--root", "relative"}, {"install", "containerd", "--node-config", "/no/such/file"},
		{"install", "systemd", "--config", "/no/such/file"}, {"install", "systemd", "--hub-key", "x"},
		{"install", "systemd", "--root", t.TempDir(), "--hub", "https://hub.example.org"},
		{"install", "systemd", "--config", "/no/such/file", "--hub", "http://127.0.0.1:1"},
		{"version", "x"}, {"completion"}, {"completion", "tcsh"},
		{"no-such-command"}, {"config", "no-such"}, {"cache", "no-such"},
	} {
		code, _, stderr := lighter(t, args...)
		if code != command.ExitUsage || !strings.HasPrefix(stderr, "lighter: ") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("lighter %s: exit %d, %q; want a usage error in one line", strings.Join(args, " "), code, stderr)
		}
	}
}

func TestErrorsAreOneLine(t *testing.T) {
	err := errors.New("connect to `x`:\n\tfirst: refused\n\tsecond: refused\n")
	if got := command.OneLine(err); got != "connect to `x`: first: refused; second: refused" {
		t.Errorf("OneLine returned %q, want the two causes, separated by a semicolon", got)
	}
}

func TestNoHubAndNoNode(t *testing.T) {
	if code, _, stderr := lighter(t, "images", "--hub", "http://127.0.0.1:1"); code != command.ExitFailed ||
		!strings.Contains(stderr, "127.0.0.1:1") || !strings.Contains(stderr, "--hub") {
		t.Errorf("no hub: exit %d, %q; want a failure that names the hub and --hub", code, stderr)
	}
	if code, _, stderr := lighter(t, "status", "--root", t.TempDir()); code != exitNoDaemon ||
		!strings.Contains(stderr, "--root") {
		t.Errorf("no node: exit %d, %q; want exit %d and an error that names --root", code, stderr, exitNoDaemon)
	}
}

func TestConfigIsAFileToStartFrom(t *testing.T) {
	for _, name := range []string{"node", "hub"} {
		code, first, stderr := lighter(t, "config", name)
		if code != 0 {
			t.Fatalf("config %s: exit %d, %s; want exit 0", name, code, stderr)
		}
		file := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(file, []byte(first), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, again, _ := lighter(t, "config", name, "--config", file); again != first {
			t.Errorf("config %s, with its own output as --config, prints\n%s\nwant\n%s", name, again, first)
		}
	}
}

// Flags and files accept sizes with units. A file with plain numbers stays valid. A printed size is
// read again as the same size.
func TestSizesInTheConfigurationOfAHub(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hub.toml")
	show := func(text string, args ...string) string {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return printedBy(t, append([]string{"config", "hub", "--config", file}, args...)...)
	}
	for what, c := range map[string]struct {
		text string
		args []string
		want []string
	}{
		"numbers": {text: "disk_reserve = 2_147_483_648\nstartup_bytes = 1073741825\n" +
			"[limits]\nlayer_bytes = 0x40000000\n[[quota]]\nprefix = 'ci'\nbytes = 500_000_000_000\n",
			want: []string{"disk_reserve = '2GiB'", "startup_bytes = '1073741825B'", "layer_bytes = '1GiB'",
				"bytes = '500GB'"}},
		"texts": {text: "disk_reserve = '500M'\nstartup_bytes = '20 GiB'\n[limits]\nlayer_bytes = '1GiB'\n" +
			"[[quota]]\nprefix = 'ci'\nbytes = '500GB'\n",
			want: []string{"disk_reserve = '500MB'", "startup_bytes = '20GiB'", "layer_bytes = '1GiB'",
				"bytes = '500GB'"}},
		"flags": {text: "disk_reserve = '1GiB'\n",
			args: []string{"--disk-reserve", "10GiB", "--startup-bytes", "1073741824"},
			want: []string{"disk_reserve = '10GiB'", "startup_bytes = '1GiB'"}},
	} {
		first := show(c.text, c.args...)
		for _, want := range c.want {
			if !strings.Contains(first, "\n"+want+"\n") {
				t.Errorf("%s: %q is not in\n%s", what, want, first)
			}
		}
		if again := show(first); again != first {
			t.Errorf("%s: config hub, with its own output as --config, prints\n%s\nwant\n%s", what, again, first)
		}
	}
	for _, args := range [][]string{{"--disk-reserve", "much"}, {"--disk-reserve=-1"}, {"--disk-reserve", "2EiB"},
		{"--startup-bytes", "10 miles"}} {
		code, _, stderr := lighter(t, append([]string{"config", "hub"}, args...)...)
		if code != command.ExitUsage || !strings.Contains(stderr, "disk") && !strings.Contains(stderr, "startup") {
			t.Errorf("%q: exit %d, %q; want a usage error that names the flag", args, code, stderr)
		}
	}
}

// Tables can be added at the end of a printed configuration.
func TestTablesAreAddedToAPrintedConfiguration(t *testing.T) {
	_, text, _ := lighter(t, "config", "hub")
	for _, table := range []string{"[[retention]]\nrepositories = ['ci/**']\nuntagged_days = 7\n",
		"[[quota]]\nprefix = 'ci'\nbytes = 1\n", "[[domain]]\nname = 'team'\nrepositories = ['team/**']\n"} {
		text += "\n" + table
		file := filepath.Join(t.TempDir(), "hub.toml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, stderr := lighter(t, "config", "hub", "--config", file)
		if header, _, _ := strings.Cut(table, "\n"); code != 0 || !strings.Contains(out, "\n"+header+"\n") {
			t.Errorf("with a table %s: exit %d, %s; want exit 0 and the table in the output", header, code, stderr)
		}
	}
}

// Every key of a configuration has a flag of the same name, unless this test lists the key: with a
// flag of another name, or with none.
func TestKeysHaveFlags(t *testing.T) {
	others := map[string]string{
		"hubs": "hub", "hub_keys": "hub-key", "attached_keys": "attached-key",
		"registry_hosts": "registry-host", "registry": "",
		"bucket": "", "catalog": "", "platforms": "", "proxies": "", "names": "", "limits": "", "layer_bytes": "",
		"entries": "", "image_minutes": "", "every_minutes": "", "delay_minutes": "", "keep_minutes": "",
		"retention": "", "quota": "", "retention_max_percent": "", "hub domain": "",
		"wishlist": "", "docker_names": "", "pull_through_bytes": "", "to": "export", "domains": "", "rate": "",
	}
	for _, name := range []string{"node", "hub"} {
		cmd, _, err := rootCommand().Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := lighter(t, "config", name)
		keys := 0
		for line := range strings.Lines(text) {
			key, _, ok := strings.Cut(line, " = ")
			if !ok || strings.HasPrefix(line, "#") {
				continue
			}
			keys++
			flag, other := others[key]
			if !other {
				flag, other = others[name+" "+key]
			}
			if !other {
				flag = strings.ReplaceAll(key, "_", "-")
			}
			if flag != "" && cmd.Flags().Lookup(flag) == nil {
				t.Errorf("lighter %s has no flag for %s", name, key)
			}
		}
		if keys < 5 {
			t.Errorf("config %s has %d keys, want at least 5", name, keys)
		}
	}
}

// The error about a key of earlier versions names what replaces it.
func TestGivenUpKeys(t *testing.T) {
	for text, want := range map[string]string{
		"root = '/x'\nsources = ['a']":    `line 2: key "sources" is not used any more: write a table [[registry]]`,
		"upstream_logins = '/etc/logins'": `line 1: key "upstream_logins" is not used any more: write a table [[registry]]`,
	} {
		file := filepath.Join(t.TempDir(), "hub.toml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := lighter(t, "config", "hub", "--config", file)
		if code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit %d, %s; want exit 2 and %q", text, code, stderr, want)
		}
	}
}

// The error about a configuration names the key as the user wrote it, and no identifier of this
// program. If the file cannot be decoded, the error also names the line.
func TestWrongConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"\nrooot = '/x'":                `line 2: unknown key "rooot"`,
		"[a.b]\nc = 1":                  `line 1: unknown key "a.b"`,
		"root = 5":                      "line 1: root: it is of type integer, and has to be of type string",
		"cache_size = '20 miles'":       `line 1: cache_size: "20 miles" is not a size`,
		"disk_free_low = 17":            `"17" is less than 1 MiB of a disk`,
		`record_delay = "2h"`:           "record_delay 2h0m0s is not between 0s and 1h0m0s",
		`record_delay = "soon"`:         "is not a delay",
		`held_delay = "0s"`:             "held_delay 0s is not between 1s and 1h0m0s",
		"scrub_rate = -4":               "scrub_rate is below zero",
		"prefetch_limit = -4":           "prefetch_limit is below zero",
		"hubs = []":                     "hubs is empty",
		"mount_mode = 'files'":          `mount_mode "files" is not one of`,
		"trust = 'images'":              `trust "images" is not one of [auto chain image]`,
		"direct = ['a/[**']":            `direct: "a/[**" is no pattern`,
		"direct = ['ci/**']":            `direct: "ci/**" matches no repository`,
		"direct_verified = ['quay.io']": `direct_verified: "quay.io" matches no repository`,
	} {
		file := filepath.Join(t.TempDir(), "node.toml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"config", "node"}, {"node"}} {
			code, _, stderr := lighter(t, append(args, "--config", file)...)
			if code != command.ExitUsage || !strings.Contains(stderr, want) || strings.Contains(stderr, "node.Config") {
				t.Errorf("%q: exit %d, %q; want a usage error with %q", text, code, stderr, want)
			}
		}
	}
}

func TestFlagsOverrideFileAndFileOverridesDefaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.toml")
	if err := os.WriteFile(file, []byte("cache_size = '1GiB'\nhub = 'http://127.0.0.1:9'\nhub_keys = ['a']\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	config := struct {
		CacheSize string   `toml:"cache_size"`
		Hub       string   `toml:"hub"`
		Keys      []string `toml:"hub_keys"`
		Root      string   `toml:"root"`
	}{Root: "/default"}
	cmd := &cobra.Command{}
	cmd.Flags().StringVar(&config.Hub, "hub", "", "")
	cmd.Flags().StringSliceVar(&config.Keys, "hub-key", nil, "")
	if err := cmd.ParseFlags([]string{"--hub", "http://127.0.0.1:8", "--hub-key", "b,c"}); err != nil {
		t.Fatal(err)
	}
	if err := effective(cmd, file, &config); err != nil {
		t.Fatal(err)
	}
	if config.CacheSize != "1GiB" || config.Hub != "http://127.0.0.1:8" || config.Root != "/default" ||
		strings.Join(config.Keys, "") != "bc" {
		t.Errorf("effective: got %+v, want the flags' values, then the file's, then the defaults", config)
	}
	if err := os.WriteFile(file, []byte("cachesize = '1GiB'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := effective(cmd, file, &config); err == nil || !strings.Contains(err.Error(), "cachesize") {
		t.Errorf("a key that does not exist: got %v, want an error that names it", err)
	}
}

func TestSizesAreReadable(t *testing.T) {
	var out bytes.Buffer
	if err := table(&out, "A\tB", [][]any{{"x", size(3 << 20)},
		{short("sha256:0123456789abcdef0123"), 5}}); err != nil {
		t.Fatal(err)
	}
	want := "A                     B\n" +
		"x                     3.0 MiB\n" +
		"sha256:0123456789ab   5\n"
	if out.String() != want {
		t.Errorf("got the table\n%s\nwant\n%s", out.String(), want)
	}
}
