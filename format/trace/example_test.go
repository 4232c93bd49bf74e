package trace_test

import (
	"fmt"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
)

// A node encodes what a start has read; the hub decodes it for the device of the same tree.
func ExampleTrace() {
	tree := chunk.Sum([]byte("a tree"))
	start := trace.Trace{Tree: tree, Reads: []trace.Read{
		{Offset: 0, Length: 4096},
		{At: 17 * time.Millisecond, Offset: 8192, Length: 131072},
	}}
	text := start.Encode()
	fmt.Println(string(text))
	decoded, err := trace.Decode(text, tree, 1<<20)
	fmt.Println(len(decoded.Reads), err)
	_, err = trace.Decode(text, tree, 8192) // the device is too small
	fmt.Println(err != nil)
	// Output:
	// {"reads":[[0,0,4096],[17,8192,131072]]}
	// 2 <nil>
	// true
}

// Recordings are text that people can read and move to another hub.
func ExampleEncodeText() {
	text := trace.EncodeText([]trace.Recording{{Starts: 3, Entries: []trace.Entry{
		{Path: "/usr/bin/bash", Length: 131072},
		{At: 3 * time.Millisecond, Path: "/opt/odd name", Offset: 4096, Length: 1},
	}}})
	fmt.Print(string(text))
	all, err := trace.ParseText(text)
	fmt.Println(len(all), all[0].Starts, err)
	// Output:
	// lighter trace 1
	// starts 3
	// 0 0 131072 /usr/bin/bash
	// 3 4096 1 /opt/odd%20name
	// 1 3 <nil>
}
