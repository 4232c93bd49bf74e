package tree_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"

	"lighter/format/tree"
)

// Two layers are read into records, and the records are merged. The upper layer removes a file.
func Example() {
	lower, err := record(&tar.Header{Name: "etc/", Mode: 0o755, Typeflag: tar.TypeDir},
		&tar.Header{Name: "etc/hosts", Mode: 0o644, Typeflag: tar.TypeReg},
		&tar.Header{Name: "etc/motd", Mode: 0o644, Typeflag: tar.TypeReg})
	if err != nil {
		fmt.Println(err)
		return
	}
	upper, err := record(&tar.Header{Name: "etc/.wh.motd", Typeflag: tar.TypeReg})
	if err != nil {
		fmt.Println(err)
		return
	}
	merged, err := tree.Apply(context.Background(), []tree.LayerSource{tree.NewRecordReader(lower),
		tree.NewRecordReader(upper)}, tree.Limits{Entries: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, dir := range merged.Root.Children() {
		for _, file := range dir.Node.Children() {
			fmt.Printf("%s/%s %o\n", dir.Name, file.Name, file.Node.Mode)
		}
	}
	// Output: etc/hosts 100644
}

// record returns the record of a layer with these entries.
func record(headers ...*tar.Header) (*bytes.Buffer, error) {
	var layer, out bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	record := tree.NewRecordWriter(&out)
	content := func(e *tree.Entry, r io.Reader) (err error) { // larger files are split into chunks
		e.Content.Inline, err = io.ReadAll(r)
		return err
	}
	if err := tree.Scan(&layer, tree.Limits{Bytes: 1 << 20}, content, record.Add); err != nil {
		return nil, err
	}
	return &out, record.Close()
}
