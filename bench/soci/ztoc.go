package main

import (
	"fmt"
	"io"
	"os"

	"github.com/awslabs/soci-snapshotter/ztoc"
)

// writeZTOC writes the peer's index of a layer's blob to a file. compression is gzip or
// uncompressed.
func writeZTOC(blob, to, compression string, spanSize int64) error {
	index, err := ztoc.NewBuilder(buildTool).BuildZtoc(blob, spanSize, ztoc.WithCompression(compression))
	if err != nil {
		return fmt.Errorf("index %s: %w", blob, err)
	}
	r, _, err := ztoc.Marshal(index)
	if err != nil {
		return fmt.Errorf("index %s: %w", blob, err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

// buildTool is the name that the peer's converter gives itself in an index.
const buildTool = "AWS SOCI CLI v0.2"
