package index

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/erofs"
)

// Receive reads index id from r, verifies it, and writes its two parts: the map (header, page
// table, pages) for OpenMap, and the metadata image, which the kernel can mount after
// CheckMetadata. Neither may be used if Receive returns an error.
//
// It allocates a few kilobytes and the page table, and never trusts a length that it has not
// verified.
func Receive(r io.Reader, id chunk.ID, extentMap, metadata io.Writer) (Header, error) {
	h, err := ReceiveHeader(r, id)
	if err != nil {
		return h, err
	}
	// After the right header, r may still return wrong bytes; the digests cover all of them.
	table, err := readPart(r, h.Pages*pageEntrySize, h.PageTable, "page table")
	if err != nil {
		return h, err
	}
	if _, err := extentMap.Write(append(h.encode(), table...)); err != nil {
		return h, fmt.Errorf("store the extent map: %w", err)
	}
	padding := h.pagesOffset() - headerSize - int64(len(table))
	if err := copyZeros(extentMap, r, padding); err != nil {
		return h, err
	}
	page := make([]byte, pageSize)
	for i := range h.Pages {
		if _, err := io.ReadFull(r, page); err != nil {
			return h, fmt.Errorf("read page %d of the index: %w", i, err)
		}
		if _, err := h.decodePage(page, table, i); err != nil {
			return h, err
		}
		if _, err := extentMap.Write(page); err != nil {
			return h, fmt.Errorf("store the extent map: %w", err)
		}
	}
	return h, h.receiveMetadata(r, metadata)
}

// ReceiveHeader reads and verifies the header of index id.
func ReceiveHeader(r io.Reader, id chunk.ID) (Header, error) {
	b := make([]byte, headerSize)
	if _, err := io.ReadFull(r, b); err != nil {
		return Header{}, fmt.Errorf("read the index header: %w", noEOF(err))
	}
	if got := chunk.ID(sha256.Sum256(b)); got != id {
		return Header{}, &chunk.InvalidError{What: "index " + id.Short(),
			Err: fmt.Errorf("its tree ID is %s", got.Short())}
	}
	h, err := decodeHeader(b)
	if err != nil {
		return h, &chunk.InvalidError{What: "index " + id.Short(), Err: err}
	}
	return h, nil
}

func (h *Header) receiveMetadata(r io.Reader, metadata io.Writer) error {
	// The hub has signed the digest, but the image was not checked before. Its first block
	// describes the device; CheckMetadata checks the rest.
	first := make([]byte, erofs.BlockSize)
	if _, err := io.ReadFull(r, first); err != nil {
		return fmt.Errorf("receive the metadata image: %w", noEOF(err))
	}
	if err := erofs.CheckFirstBlock(first, h.MetadataSize, h.DeviceSize); err != nil {
		return &chunk.InvalidError{What: "metadata image", Err: err}
	}
	sum := sha256.New()
	whole := io.MultiReader(bytes.NewReader(first), r)
	if _, err := io.CopyN(io.MultiWriter(metadata, sum), whole, h.MetadataSize); err != nil {
		return fmt.Errorf("receive the metadata image: %w", noEOF(err))
	}
	if got := chunk.ID(sum.Sum(nil)); got != h.Metadata {
		return &chunk.InvalidError{What: "metadata image", Err: fmt.Errorf("its digest is %s", got.Short())}
	}
	var one [1]byte
	if n, err := io.ReadFull(r, one[:]); n != 0 || err != io.EOF {
		return &chunk.InvalidError{What: "index", Err: fmt.Errorf("it has bytes after its end (%v)", err)}
	}
	return nil
}

// readPart reads n bytes and verifies their digest. It allocates in steps, so a wrong n costs no
// more memory than there are bytes.
func readPart(r io.Reader, n int64, want chunk.ID, what string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, n))
	if err == nil && int64(len(b)) < n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("read the %s of the index: %w", what, err)
	}
	if got := chunk.Sum(b); got != want {
		return nil, &chunk.InvalidError{What: what, Err: fmt.Errorf("its digest is %s", got.Short())}
	}
	return b, nil
}

// decodePage verifies page i against the table and decodes its extents. They must lie between the
// page's first offset in the table and the first offset of the next page.
func (h *Header) decodePage(page, table []byte, i int64) ([]Extent, error) {
	what := fmt.Sprintf("page %d of the extent map", i)
	if got := chunk.Sum(page); got != chunk.ID(table[i*pageEntrySize+8:(i+1)*pageEntrySize]) {
		return nil, &chunk.InvalidError{What: what, Err: fmt.Errorf("its digest is %s", got.Short())}
	}
	first := int64(binary.LittleEndian.Uint64(table[i*pageEntrySize:]))
	end := h.DeviceSize
	if i+1 < h.Pages {
		end = int64(binary.LittleEndian.Uint64(table[(i+1)*pageEntrySize:]))
	}
	n := min(pageExtents, h.Extents-i*pageExtents)
	extents, err := decodePage(page, int(n), first, min(end, h.DeviceSize))
	if err != nil {
		return nil, &chunk.InvalidError{What: what, Err: err}
	}
	return extents, nil
}

// copyZeros copies n bytes, which must be zeros and fewer than pageSize.
func copyZeros(w io.Writer, r io.Reader, n int64) error {
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return fmt.Errorf("read the index: %w", noEOF(err))
	}
	if !bytes.Equal(b, zeros[:n]) {
		return &chunk.InvalidError{What: "index", Err: errors.New("its padding is not zero")}
	}
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("store the extent map: %w", err)
	}
	return nil
}

var zeros [pageSize]byte

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
