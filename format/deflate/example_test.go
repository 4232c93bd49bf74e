package deflate_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"lighter/format/deflate"
)

// A stream is read once, from its beginning, and entered in the middle later.
func Example() {
	var stream bytes.Buffer
	for _, text := range []string{"one, ", "two, ", "three"} { // three members
		z := gzip.NewWriter(&stream)
		_, _ = z.Write([]byte(text))
		_ = z.Close()
	}

	var points []deflate.Checkpoint
	plain := deflate.NewIndexer(bytes.NewReader(stream.Bytes()), 0, func(c deflate.Checkpoint) error {
		c.Window = bytes.Clone(c.Window)
		points = append(points, c)
		return nil
	})
	text, err := io.ReadAll(plain)
	fmt.Printf("%s (%v)\n", text, err)

	second := points[1]
	rest, err := deflate.Resume(bytes.NewReader(stream.Bytes()[second.Start():]), second)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err = io.ReadAll(rest)
	fmt.Printf("from plain byte %d: %s (%v)\n", second.Out, text, err)

	// Output:
	// one, two, three (<nil>)
	// from plain byte 5: two, three (<nil>)
}
