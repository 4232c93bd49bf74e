package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/cmd/command"
	"lighter/hub"
	"lighter/hub/backup"
	"lighter/hub/rootdir"
)

// openedHub makes the directory of a hub with the domain "team", and returns it and a configuration
// file that names both.
func openedHub(t *testing.T) (root, file string) {
	t.Helper()
	dir := t.TempDir()
	c := hub.DefaultConfig()
	c.Root, c.DiskReserve = filepath.Join(dir, "hub"), 0
	c.Domains = []hub.Domain{{Name: "team", Repositories: []string{"team/**"}}}
	h, err := hub.Open(t.Context(), c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "hub.toml")
	text := fmt.Sprintf("root = %q\n[[domain]]\nname = \"team\"\nrepositories = [\"team/**\"]\n", c.Root)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return c.Root, file
}

// printedBy runs a command that must succeed, and returns its output.
func printedBy(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := lighter(t, args...)
	if code != 0 {
		t.Fatalf("lighter %s: exit %d, %s; want exit 0", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// Each domain has keys of its own, which are shown, added and removed by its name.
func TestKeysOfADomain(t *testing.T) {
	root, file := openedHub(t)
	show := func(flags ...string) []string {
		t.Helper()
		return strings.Fields(printedBy(t, append([]string{"hub", "key", "show"}, flags...)...))
	}
	ours, teams := show("--root", root), show("--root", root, "--domain", "team")
	if len(ours) != 1 || len(teams) != 1 || ours[0] == teams[0] {
		t.Fatalf("keys %q and %q, want one of each domain", ours, teams)
	}
	if named := show("--config", file, "--domain", "default"); !slices.Equal(named, ours) {
		t.Errorf("keys of the default domain by its name: %q, want %q", named, ours)
	}
	added := strings.TrimSpace(printedBy(t, "hub", "key", "add", "--config", file, "--domain", "team"))
	if now := show("--config", file, "--domain", "team"); !slices.Equal(now, append(teams, added)) {
		t.Errorf("after one was added: %q, want %q and %q", now, teams, added)
	}
	printedBy(t, "hub", "key", "remove", "--root", root, "--domain", "team", teams[0])
	if now := show("--root", root, "--domain", "team"); !slices.Equal(now, []string{added}) {
		t.Errorf("after one was removed: %q, want %q", now, added)
	}
	if now := show("--root", root); !slices.Equal(now, ours) {
		t.Errorf("the default domain has %q, want %q as before", now, ours)
	}
	for _, action := range [][]string{{"show"}, {"add"}, {"remove", added}} {
		args := append([]string{"hub", "key", action[0], "--config", file, "--domain", "tema"}, action[1:]...)
		code, _, stderr := lighter(t, args...)
		if code != command.ExitFailed || !strings.Contains(stderr, `no domain "tema"`) {
			t.Errorf("%q: exit %d, %q, want an error that names the domain", args, code, stderr)
		}
	}
	for _, action := range []string{"show", "add", "use"} {
		code, _, stderr := lighter(t, "hub", "key", action, "--root", filepath.Join(root, "none"))
		if code != command.ExitFailed || !strings.Contains(stderr, "--root or --config") {
			t.Errorf("%s in no directory: exit %d, %q, want an error that says what to do", action, code, stderr)
		}
	}
	code, _, stderr := lighter(t, "hub", "key", "show", "--root", root, "--domain", "../x")
	if code != command.ExitUsage {
		t.Errorf("an invalid name of a domain: exit %d, %q; want a usage error", code, stderr)
	}
}

// A backup has the keys of all domains, whether a configuration names the domains or not. "lighter
// backup hold" passes the arguments on to its command, and fails if that command fails.
func TestBackupOfAllDomains(t *testing.T) {
	root, file := openedHub(t)
	dir, again := filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "again")
	var r backup.Result
	text := printedBy(t, "backup", "--root", root, "--json", dir)
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.Time.IsZero() {
		t.Errorf("backup: got %+v, %v; want a result with a time", r, err)
	}
	printedBy(t, "restore", "--root", again, dir)
	for _, domain := range []string{"default", "team"} {
		key := func(root string) string {
			return printedBy(t, "hub", "key", "show", "--root", root, "--domain", domain)
		}
		if key(again) != key(root) {
			t.Errorf("the restored hub has the key %q in domain %s, want %q", key(again), domain, key(root))
		}
	}
	mark := filepath.Join(t.TempDir(), "mark")
	for _, flags := range [][]string{{"--root", root}, {"--config", file}} {
		hold := append([]string{"backup", "hold"}, flags...)
		printedBy(t, append(hold, "--", "touch", mark)...)
		if err := os.Remove(mark); err != nil {
			t.Errorf("%q has not run the command: %v", hold, err)
		}
		if code, _, stderr := lighter(t, append(hold, "--", "false")...); code != command.ExitFailed ||
			!strings.Contains(stderr, "false") {
			t.Errorf("%q of a command that fails: exit %d, %q; want a failure that names it", hold, code, stderr)
		}
	}
	// A domain that the hub has not opened cannot be held.
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	config = append(config, "[[domain]]\nname = \"new\"\nrepositories = [\"new/**\"]\n"...)
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := lighter(t, "backup", "hold", "--config", file, "--", "true")
	if code != command.ExitFailed || !strings.Contains(stderr, "domain new") ||
		!strings.Contains(stderr, "start the hub") {
		t.Errorf("a domain that no hub has opened: exit %d, %q; want an error that names it and says what to do",
			code, stderr)
	}
}

// A hub whose key is lost says what to do, and starts once that was done.
func TestLostKeyIsReplaced(t *testing.T) {
	root, file := openedHub(t)
	path := filepath.Join(rootdir.Domain(root, "team"), "hub.key")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	start := func() string {
		t.Helper()
		// The hub ends when it has opened its domains: the address is invalid.
		code, _, stderr := lighter(t, "hub", "--config", file, "--disk-reserve", "0", "--listen", "127.0.0.1:99999")
		if code != command.ExitFailed {
			t.Errorf("exit %d, %q; want exit %d", code, stderr, command.ExitFailed)
		}
		return stderr
	}
	if text := start(); !strings.Contains(text, path) || !strings.Contains(text, "lighter hub key use") {
		t.Errorf("without the key of a domain: %q, want an error that names it and says what to do", text)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the hub has made another key")
	}
	code, _, stderr := lighter(t, "hub", "key", "use", "--config", file, "--domain", "team")
	if code != command.ExitFailed || !strings.Contains(stderr, path) {
		t.Errorf("use a key that does not exist: exit %d, %q; want an error that names the file", code, stderr)
	}
	printedBy(t, "hub", "key", "add", "--config", file, "--domain", "team")
	if text := start(); !strings.Contains(text, path) || !strings.Contains(text, "lighter hub key use") {
		t.Errorf("with another key: %q, want an error that names the file and says what to do", text)
	}
	printedBy(t, "hub", "key", "use", "--config", file, "--domain", "team")
	if text := start(); !strings.Contains(text, "99999") {
		t.Errorf("with a key that it was to use: %q, want only the error about its address", text)
	}
}
