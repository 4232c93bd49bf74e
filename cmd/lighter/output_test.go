package main

import (
	"strings"
	"testing"

	"lighter/test/testkit/printed"
	"lighter/wire"
)

// Numbers that are not bytes are printed without a unit. Digests and tree IDs are shortened, names
// are not.
func TestProgressIsPrinted(t *testing.T) {
	_, got := printed.By(t, func() {
		_, _ = watch(func(show func(wire.Progress)) (struct{}, error) {
			for _, step := range []wire.Progress{{Step: "wait"},
				{Step: "collect", Item: "packs", Bytes: 2048, Total: 2048},
				{Step: "mark", Item: "repositories", Bytes: 5, Total: 5}, {Step: "check", Item: "catalog"},
				{Step: "find", Item: "registry.example.org:5000/team", Bytes: 3, Total: 3},
				{Step: "copy", Item: "sha256:" + strings.Repeat("a", 64), Bytes: 1, Total: 1},
				{Step: "verify", Item: strings.Repeat("b", 64)}} {
				show(step)
			}
			return struct{}{}, nil
		})
	})
	if want := "collect packs  2.0 KiB\nmark repositories  5\ncheck catalog\n" +
		"find registry.example.org:5000/team  3\ncopy sha256:aaaaaaaaaaaa  1 B\nverify bbbbbbbbbbbb\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}
