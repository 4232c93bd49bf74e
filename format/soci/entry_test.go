package soci

import (
	"bytes"
	"io"
	"reflect"
	"testing"

	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

// The entries of unusual layers are those that Scan reads, if there is a zTOC of them at all.
func TestEntriesOfUnusualLayers(t *testing.T) {
	compared, all := 0, 0
	for _, chain := range tarball.Odd() {
		for _, layer := range chain.Layers {
			all++
			ztoc, err := Make(bytes.NewReader(layer),
				Options{Compression: Uncompressed, SpanSize: DefaultSpanSize, Tool: goldenTool})
			if err != nil {
				continue // as SOCI does, or a sparse file
			}
			want, err := scanned(layer)
			if err != nil {
				t.Fatalf("%s: Scan returned %v, Make no error", chain.Name, err)
			}
			table, err := Decode(ztoc, tree.Limits{})
			if err != nil {
				t.Fatalf("%s: %v", chain.Name, err)
			}
			source := table.Layer(func(e *tree.Entry, _ int64) error {
				e.Content = someContent(e)
				return nil
			})
			for _, e := range want {
				if got, err := source.Next(); err != nil || !reflect.DeepEqual(got, e) {
					t.Errorf("%s: got %+v (%v), want %+v", chain.Name, got, err, e)
				}
			}
			compared++
		}
	}
	if compared < all*3/4 {
		t.Errorf("%d of %d layers were compared", compared, all)
	}
}

// scanned returns a layer's entries, with the IDs that a zTOC has.
func scanned(layer []byte) (entries []*tree.Entry, err error) {
	err = tree.Scan(bytes.NewReader(layer), tree.Limits{}, func(e *tree.Entry, r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		e.Content = someContent(e)
		return err
	}, func(e *tree.Entry) error {
		e.UID, e.GID = int(uint32(e.UID)), int(uint32(e.GID))
		entries = append(entries, e)
		return nil
	})
	return entries, err
}
