package chunk_test

import (
	"bytes"
	"fmt"

	"lighter/format/chunk"
)

// A file with a hole in its middle is split into two chunks.
func ExampleSplitter_Split() {
	file := append([]byte("begin"), make([]byte, 1<<20)...)
	file = append(file, "end"...)

	var s chunk.Splitter
	err := s.Split(bytes.NewReader(file), int64(len(file)), func(data []byte, zeros int64) error {
		if data == nil {
			fmt.Println("hole of", zeros, "bytes")
			return nil
		}
		fmt.Println("chunk", chunk.Sum(data).Short(), "of", len(data), "bytes")
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// chunk bddeb6bcdb3c of 4096 bytes
	// hole of 1044480 bytes
	// chunk 40458bc7b40e of 8 bytes
}

// A received chunk is checked before it is used.
func ExampleRef_Check() {
	ref := chunk.Ref{ID: chunk.Sum([]byte("hello")), Length: 5}
	fmt.Println(ref.Check([]byte("hello")))
	fmt.Println(ref.Check([]byte("hullo")))
	// Output:
	// <nil>
	// chunk 2cf24dba5fb0 is invalid: its digest is 7835066a1457
}
