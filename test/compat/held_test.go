package compat

import (
	"testing"

	"lighter/format/chunk"
	"lighter/test/testkit/example"
	"lighter/wire"
)

// TestHeld reads a report of what a node has, and the answer, as an earlier version has sent them.
func TestHeld(t *testing.T) {
	type exchange struct {
		Held    wire.Held
		Unknown wire.Unknown
	}
	one, two := chunk.Sum([]byte("one")), chunk.Sum([]byte("two"))
	want := exchange{
		wire.Held{Holder: "0123456789abcdef0123456789abcdef", Kind: wire.HolderNode, Name: "node.example.org",
			Trees: []chunk.ID{one, two}},
		wire.Unknown{Trees: []chunk.ID{two}},
	}
	var got exchange
	decode(t, example.Stored(t, "held-1.json", func() []byte { return encode(t, want) }), &got)
	equal(t, "report", got.Held, want.Held)
	equal(t, "answer", got.Unknown, want.Unknown)
	again := encode(t, got)
	equal(t, "report as it is sent today", string(again), string(example.Stored(t, "held-1.json", nil)))
}
