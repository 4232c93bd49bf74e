package main

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInvalidCommandLines(t *testing.T) {
	for _, line := range []string{"", "pull", "snapshotter --root /r", "snapshotter --root /r --address /a more",
		"convert a", "convert --trace t a b"} {
		if err := run(t.Context(), strings.Fields(line)); !errors.As(err, new(usageError)) {
			t.Errorf("nydus %s: got %v, want a usageError", line, err)
		}
	}
	for _, line := range []string{"help", "convert --help", "snapshotter -h"} {
		if err := run(t.Context(), strings.Fields(line)); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("nydus %s: got %v, want ErrHelp", line, err)
		}
	}
}

func TestNoPrefetch(t *testing.T) {
	for _, off := range []bool{false, true} {
		root := t.TempDir()
		if _, err := configure(snapshotterOptions{root: root, programs: "/programs", noPrefetch: off}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(root, "etc/nydusd.json"))
		if err != nil {
			t.Fatal(err)
		}
		var settings struct {
			Prefetch struct {
				Enable bool
				All    bool `json:"prefetch_all"`
			} `json:"fs_prefetch"`
		}
		if err := json.Unmarshal(text, &settings); err != nil || settings.Prefetch.Enable == off ||
			settings.Prefetch.All == off {
			t.Errorf("configuration of nydusd with noPrefetch %t: got %s (%v), want both settings %t", off, text, err, !off)
		}
	}
}
