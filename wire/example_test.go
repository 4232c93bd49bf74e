package wire_test

import (
	"fmt"

	"lighter/format/chunk"
	"lighter/wire"
)

// ParseName turns an image's name into its place in the hub's registry. Ref.Name turns the place
// into the name again.
func ExampleParseName() {
	ref, err := wire.ParseName("localhost:5000/tools/shell:1")
	if err != nil {
		panic(err)
	}
	fmt.Println(ref.Repository, ref.Reference())
	fmt.Println(ref.Name())
	// Output:
	// localhost_5000/tools/shell 1
	// localhost:5000/tools/shell:1
}

// A node fetches units by the digest of their pack and their number in it.
func ExampleUnitPath() {
	unit := chunk.Unit{Pack: chunk.Sum([]byte("a pack")), N: 3}
	fmt.Println(wire.UnitPath(wire.DefaultDomain, unit))
	// Output:
	// /lighter/1/default/packs/d55b179625eddb11f50e77ddd1bb9660f7373879e56123ffdc1e0a9d9ff30428/3
}
