package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInvalidCommandLines(t *testing.T) {
	for _, line := range []string{
		"", "pull", "snapshotter --root /r --address /a", "snapshotter --root /r --address /a --containerd /c more",
		"snapshotter --no-such-flag",
		"snapshotter --root /r --address /a --containerd /c --log-level much", "convert a", "convert --trace t a b", "create", "create a b", "create --min-layer-size much a",
		"ztoc a", "ztoc --span-size much a b",
	} {
		if err := run(t.Context(), strings.Fields(line)); !errors.As(err, new(usageError)) {
			t.Errorf("soci %s: got %v, want a usageError", line, err)
		}
	}
	for _, line := range []string{"help", "convert --help", "snapshotter -h", "ztoc -h"} {
		if err := run(t.Context(), strings.Fields(line)); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("soci %s: got %v, want ErrHelp", line, err)
		}
	}
}

func TestConfiguration(t *testing.T) {
	defaults, err := readConfig(snapshotterOptions{containerd: "/c"})
	if err != nil || defaults.BackgroundFetchConfig.Disable || defaults.ContentStoreConfig.ContainerdAddress != "/c" ||
		len(defaults.Host) != 0 {
		t.Errorf("defaults: got %+v (%v), want background fetches, containerd at /c and no mirrors", defaults, err)
	}
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	settings, err := readConfig(snapshotterOptions{config: write("[background_fetch]\ndisable = true\n"),
		plainHTTP: "registry:5000"})
	if err != nil || !settings.BackgroundFetchConfig.Disable {
		t.Errorf("configuration of a file: got %+v (%v), want no background fetches", settings, err)
	}
	if mirrors := settings.Host["registry:5000"].Mirrors; len(mirrors) != 1 ||
		mirrors[0].Host != "http://registry:5000" || !mirrors[0].Insecure {
		t.Errorf("mirrors: got %+v, want only http://registry:5000, which is insecure", mirrors)
	}
	for _, path := range []string{"no/such/file", write("["), write("metadata_store = \"db-multi\"\n")} {
		if _, err := readConfig(snapshotterOptions{config: path}); err == nil {
			t.Errorf("invalid configuration was accepted: %s", path)
		}
	}
}
