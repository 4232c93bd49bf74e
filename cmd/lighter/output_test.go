package main

import (
	"testing"

	"lighter/test/testkit/printed"
	"lighter/wire"
)

// Numbers that are not bytes are printed without a unit.
func TestProgressIsPrinted(t *testing.T) {
	_, got := printed.By(t, func() {
		_, _ = watch(func(show func(wire.Progress)) (struct{}, error) {
			for _, step := range []wire.Progress{{Step: "wait"},
				{Step: "collect", Item: "packs", Bytes: 2048, Total: 2048},
				{Step: "mark", Item: "repositories", Bytes: 5, Total: 5}, {Step: "check", Item: "catalog"}} {
				show(step)
			}
			return struct{}{}, nil
		})
	})
	if want := "collect packs  2.0 KiB\nmark repositories  5\ncheck catalog\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}
