package soci_test

import (
	"bytes"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/soci"
	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

// A zTOC says where the bytes of each file are, and how to get them from a part of the layer.
func Example() {
	layer := tarball.Of(tarball.Dir("etc"), tarball.File("etc/motd", "Welcome!\n"))
	ztoc, err := soci.Make(bytes.NewReader(layer), soci.Options{Compression: soci.Uncompressed,
		SpanSize: soci.DefaultSpanSize, Tool: "example"})
	if err != nil {
		fmt.Println(err)
		return
	}

	table, err := soci.Decode(ztoc, tree.Limits{Entries: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	span := table.Span(0)
	plain, err := span.Open(layer[span.Compressed.Start:span.Compressed.End])
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := io.ReadAll(plain)
	if err != nil {
		fmt.Println(err)
		return
	}
	entries := table.Layer(func(e *tree.Entry, offset int64) error {
		content := text[offset : offset+e.Size]
		fmt.Printf("%s: %s", e.Name, content)
		e.Content.Extents = []tree.Extent{{ID: chunk.Sum(content), Length: e.Size}}
		return nil
	})
	for err == nil {
		_, err = entries.Next()
	}

	// Output:
	// etc/motd: Welcome!
}
