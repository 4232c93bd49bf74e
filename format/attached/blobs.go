package attached

import (
	"errors"
	"io"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/layer"
)

// WriteIndex writes the blob of an index. metadata reads its metadata image.
func WriteIndex(w io.Writer, m *index.Map, metadata io.Reader) error {
	z := compress.ArtifactEncoder(w, m.Size())
	return errors.Join(m.WriteCompact(z, metadata), z.Close())
}

// ReadIndex reads the untrusted blob of an index, and writes the index to w, as index.Expand does.
func ReadIndex(w io.WriterAt, r io.Reader, tree chunk.ID) error {
	z, err := compress.Reader(r)
	if err != nil {
		return err
	}
	defer z.Close()
	return index.Expand(w, z, tree)
}

// WriteTable writes the blob of a layer table. extents has the numbers of the index's extents.
func WriteTable(w io.Writer, t *layer.Table, extents map[chunk.ID]int64) error {
	z := compress.ArtifactEncoder(w, t.Size())
	return errors.Join(t.WriteCompact(z, extents), z.Close())
}

// ReadTable reads the untrusted blob of a layer table, as layer.ReadCompact does.
func ReadTable(r io.Reader, extents *index.Map) (*layer.Builder, error) {
	z, err := compress.Reader(r)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	return layer.ReadCompact(z, extents)
}

// WriteLocations writes the blob of encoded locations.
func WriteLocations(w io.Writer, locations []byte) error {
	z := compress.ArtifactEncoder(w, int64(len(locations)))
	_, err := z.Write(locations)
	return errors.Join(err, z.Close())
}
