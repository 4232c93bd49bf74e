package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/cmd/command"
	"lighter/node"
)

// An existing configuration of the node stays. It fits if it has the values of the flags.
func TestNodeServiceKeepsTheConfiguration(t *testing.T) {
	config := node.DefaultConfig()
	config.Hubs = []string{"https://hub.example.org"}
	for existing, fits := range map[string]bool{
		"hubs = ['https://hub.example.org'] # ours\n": true,
		"hubs = ['https://other.example.org']\n":      false,
		"":                                            false,
		"rooot = 1\n":                                 false,
	} {
		s, err := nodeService(config, []string{"--hub"})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Compare([]byte(existing))
		if (err == nil) != fits || err != nil && existing == "" && !strings.Contains(err.Error(), "--hub") {
			t.Errorf("%q: got %v, want that it fits: %t", existing, err, fits)
		}
	}
	if s, err := nodeService(config, nil); err != nil || s.Compare != nil ||
		!strings.Contains(string(s.Text), "hubs = ['https://hub.example.org']") {
		t.Errorf("without flags: got %+v, %v; want the configuration, and no comparison", s, err)
	}
}

// Without containerd, the error says what was looked for. A configuration that cannot be edited is
// named in one line, and the lines to insert are printed before.
func TestInstallContainerdFails(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	args := []string{"install", "containerd", "--containerd", filepath.Join(dir, "none.sock"), "--root", dir,
		"--config", filepath.Join(dir, "config.toml")}
	code, _, stderr := lighter(t, args...)
	if code != command.ExitFailed || !strings.Contains(stderr, "none.sock") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("no containerd: exit %d, %q; want a failure in one line that names the socket", code, stderr)
	}
	// The node's configuration names the socket, too.
	config := filepath.Join(dir, "node.toml")
	if err := os.WriteFile(config, []byte("containerd = '/run/other.sock'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = lighter(t, "install", "containerd", "--node-config", config, "--root", dir)
	if code != command.ExitFailed || !strings.Contains(stderr, "nothing listens on /run/other.sock") {
		t.Errorf("a configured socket: exit %d, %q; want a failure that names it", code, stderr)
	}
	for name, text := range map[string]string{"containerd": "#!/bin/sh\necho containerd x v2.4.2 y\n",
		"config.toml": "version = = 3\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, stderr := lighter(t, args...)
	if code != command.ExitFailed || !strings.Contains(stderr, "no valid TOML: line 1") ||
		strings.Count(stderr, "\n") != 1 || !strings.Contains(stdout, "[proxy_plugins.lighter]\n") {
		t.Errorf("a broken file: exit %d, %q, %q; want the line, and the lines to insert", code, stdout, stderr)
	}
}

// Files are named relative to the working directory, and not to the root directory.
func TestInstallWithRelativePaths(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("PATH", dir)
	if err := os.WriteFile("containerd", []byte("#!/bin/sh\necho containerd x v2.4.2 y\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"install", "containerd", "--root", filepath.Join(dir, "none"), "--dry-run"}
	code, stdout, stderr := lighter(t, append(args, "--config", "config.toml", "--containerd",
		filepath.Join(dir, "none.sock"), "--pull-through", "https://hub.example.org", "--hosts-dir", "certs")...)
	for _, want := range []string{"+++ " + filepath.Join(dir, "config.toml"),
		"+++ " + filepath.Join(dir, "certs/docker.io/hosts.toml")} {
		if code != 0 || !strings.Contains(stdout, want+"\n") {
			t.Errorf("containerd: exit %d, %s, %s; want %s", code, stderr, stdout, want)
		}
	}
	args[0], args[1] = "uninstall", "podman"
	code, stdout, stderr = lighter(t, append(args, "--config", "storage.conf", "--force")...)
	if want := filepath.Join(dir, "storage.conf"); code != 0 || !strings.Contains(stdout, "configuration: "+want+"\n") {
		t.Errorf("podman: exit %d, %s, %s; want %s", code, stderr, stdout, want)
	}
}
