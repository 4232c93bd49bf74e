package compat

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/node/directory"
	"lighter/test/testkit/example"
)

// holds notes which chains a directory holds.
type holds struct{ chains []string }

func (h *holds) Hold(chain string)                                        { h.chains = append(h.chains, chain) }
func (*holds) Mount(context.Context, string) (string, error)              { return "", nil }
func (*holds) ImageChain(context.Context, string, string) (string, error) { return "", nil }
func (*holds) NoteStart(string)                                           {}
func (*holds) Drop(string)                                                {}
func (*holds) IsShared(string, int) bool                                  { return false }
func (*holds) Tree(string) chunk.ID                                       { return chunk.ID{} }

// TestDirectoryList opens the list of the images that an earlier node's directory had mounted:
// their chains are held, so their trees are not removed. The first version had no manifests.
func TestDirectoryList(t *testing.T) {
	chain := "sha256:" + chunk.Sum([]byte("chain")).String()
	written := example.Stored(t, "directory-1.json", func() []byte {
		return []byte(`{"dir":"/lighter","images":[{"name":"registry.example.org/a/tools:1","chain":"` + chain + `"}]}`)
	})
	root := t.TempDir()
	noError(t, os.WriteFile(filepath.Join(root, "directory.json"), written, 0o600))
	h := &holds{}
	d := directory.Open(directory.Config{Root: root, File: "directory.json", Dir: "/lighter", Idle: time.Minute,
		Chains: h, Leftovers: &durable.Leftovers{Log: quiet}, Log: quiet})
	if !slices.Equal(h.chains, []string{chain}) || d.Incomplete() {
		t.Errorf("got chains %v, incomplete %t; want %s, false", h.chains, d.Incomplete(), chain)
	}
	if images := d.Status().Images; len(images) != 1 || images[0].Name != "registry.example.org/a/tools:1" {
		t.Errorf("got images %+v, want one", images)
	}
}
