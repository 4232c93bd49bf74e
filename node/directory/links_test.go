package directory

import (
	"log/slog"
	"syscall"
	"testing"

	"lighter/durable"
	"lighter/format/chunk"
)

// linked is the Links and the Chains of a directory with one chain.
type linked struct {
	Chains
	held int
}

func (l *linked) HasFile(string) bool               { return false }
func (*linked) Open(string, uint32) (Stream, error) { return nil, syscall.ENOENT }
func (*linked) HasChain(string) bool                { return true }
func (l *linked) Hold(string)                       { l.held++ }
func (l *linked) Drop(string)                       { l.held-- }
func (*linked) IsShared(string, int) bool           { return false }
func (*linked) Tree(string) chunk.ID                { return chunk.ID{} }

// A directory with links gives up its last image: it keeps no configs.
func TestLastLinkIsGivenUp(t *testing.T) {
	l, log := &linked{}, slog.New(slog.DiscardHandler)
	d := Open(Config{Root: t.TempDir(), File: "list.json", Links: l, Chains: l,
		Leftovers: &durable.Leftovers{Log: log}, Log: log})
	i, err := d.admit(key{"plain/1", target{chain: "sha256:1"}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.rest(i) // the directory is not configured, so its images are given up
	if l.held != 0 || len(d.images) != 0 {
		t.Errorf("%d images and %d holds are left, want none", len(d.images), l.held)
	}
}
