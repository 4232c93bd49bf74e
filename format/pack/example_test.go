package pack_test

import (
	"bytes"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/pack"
)

// A pack of one unit is written, and a chunk is read from the unit alone.
func Example() {
	hello, world := []byte("hello"), []byte("world")
	var unit pack.UnitBuilder
	unit.Add(chunk.Sum(hello), hello)
	unit.Add(chunk.Sum(world), world)
	encoded := unit.Encode(nil, compress.UnitEncoder(zstd.SpeedDefault, pack.MaxPlain))

	var file bytes.Buffer
	w := pack.NewWriter(&file)
	n, err := w.Add(encoded)
	if err != nil {
		fmt.Println(err)
		return
	}
	id, size, err := w.Close()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the pack's ID is its digest:", id == chunk.Sum(file.Bytes()))

	table, err := pack.ReadTable(bytes.NewReader(file.Bytes()), size)
	if err != nil {
		fmt.Println(err)
		return
	}
	offset, length, err := table.Unit(n)
	if err != nil {
		fmt.Println(err)
		return
	}
	u, err := pack.DecodeUnit(file.Bytes()[offset : offset+length])
	if err != nil {
		fmt.Println(err)
		return
	}
	plain, err := u.Lookup(chunk.Sum(world))
	fmt.Printf("%s %v\n", plain, err)
	// Output:
	// the pack's ID is its digest: true
	// world <nil>
}
