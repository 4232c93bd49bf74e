package stargz_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"lighter/format/chunk"
	"lighter/format/layer"
	"lighter/format/stargz"
	"lighter/format/tree"
)

// A node reads a layer's table, makes the tree, and reads chunks from ranges of the blob.
func Example() {
	blob, err := os.ReadFile("testdata/estargz-prioritized.blob")
	check(err)
	text, err := os.ReadFile("testdata/estargz-prioritized.json")
	check(err)
	var annotations map[string]string // of the layer's descriptor in the manifest
	check(json.Unmarshal(text, &annotations))

	size := int64(len(blob))
	table, found, err := stargz.Locate(annotations, size)
	check(err)
	if !found {
		table, err = stargz.LocateByFooter(annotations, size, blob[size-stargz.TailLength(size):])
		check(err)
	}
	fmt.Println(table.Format, table.Verifiable())

	stored := bytes.NewReader(blob[table.Offset : table.Offset+table.Length])
	decoded, err := stargz.Decode(context.Background(), table, stored)
	check(err)
	for _, name := range decoded.Prefetch().Files {
		fmt.Println("read first:", name)
	}
	mapped, err := decoded.Map(chunk.Sum(blob), size)
	check(err)
	source := mapped.Source()
	for {
		e, err := source.Next()
		check(err)
		if e.Name == "etc/small" {
			fmt.Printf("%q\n", read(mapped, blob, e.Content.Extents))
			return
		}
	}
	// Output:
	// eStargz true
	// read first: usr/bin/large
	// read first: etc/small
	// "small\n"
}

// read reads a file.
func read(mapped *layer.Layer, blob []byte, extents []tree.Extent) (content []byte) {
	var b bytes.Buffer
	_, err := mapped.Table.WriteTo(&b)
	check(err)
	table, err := layer.OpenTable(bytes.NewReader(b.Bytes()), int64(b.Len()))
	check(err)
	for _, x := range extents {
		n, found := mapped.Units[x.ID]
		if !found {
			panic("no unit has the chunk")
		}
		unit, err := table.Unit(n)
		check(err)
		chunks, err := unit.Decode(blob[unit.Offset : unit.Offset+unit.Stored])
		check(err)
		plain, err := chunks.Lookup(x.ID)
		check(err)
		content = append(content, plain...)
	}
	return content
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
