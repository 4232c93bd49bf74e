// Package audit reads a layer's blob once, and finds whether a table of contents says what the
// layer has: the same entries in the same order, the same bytes in every chunk, and the diffID of
// the image's config.
//
// Nothing binds a table of contents to a diffID, so a node needs that before it believes a table
// that anybody may have written. The blob's own digest is the caller's to check.
//
// Modification times may differ by a second, because some writers round them. Global PAX headers do
// not count: containerd ignores them.
//
// Memory: a unit (package layer) and its plain bytes, 13 MB at most, and about 100 bytes for each
// chunk with a derived ID.
package audit

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/layer"
	"lighter/format/tree"
)

// Claims are what is said about a layer.
type Claims struct {
	DiffID chunk.ID         // the SHA-256 of the tar stream
	Source tree.LayerSource // the entries, in the order of the tar
	Table  *layer.Table     // the units of their chunks
	// Hides reports whether the table leaves out the entry of that name, because it is a file of
	// the table's format. nil: it leaves out none.
	Hides func(name string) bool
}

// A DifferenceError says in what a layer differs from what is said about it.
type DifferenceError struct{ Why string }

func (e *DifferenceError) Error() string { return "the layer differs from its table: " + e.Why }

func differs(format string, args ...any) error { return &DifferenceError{fmt.Sprintf(format, args...)} }

// Read reads the blob to its end, whatever it finds. The error is a *DifferenceError if the claims
// are wrong, or if the blob is no layer that can be unpacked. Any other error is one of blob or of
// the table, or it wraps a *tree.LimitError, because the layer exceeds the limits: nothing is known
// about the claims then.
func Read(blob io.Reader, c Claims, limits tree.Limits) error {
	in := &source{r: blob}
	a := &auditor{claims: c, chunks: map[chunk.ID]sums{}}
	a.parts = parts{r: in, table: c.Table, seen: a.decoded}
	found := a.read(limits)
	if _, err := io.Copy(io.Discard, &a.parts); found == nil {
		found = err
	}
	if found == nil {
		found = a.checkChunks()
	}
	switch {
	case in.err != nil: // bytes that never arrived may be what was found
		return in.err
	case found == nil, errors.As(found, new(*DifferenceError)), errors.As(found, new(*tree.LimitError)):
		return found
	case a.failed != nil:
		return a.failed
	}
	return differs("it cannot be unpacked: %v", found)
}

// source notes the error that ends a blob.
type source struct {
	r   io.Reader
	err error // nil after io.EOF
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// auditor compares the entries of a tar with those of a table.
type auditor struct {
	claims  Claims
	parts   parts
	isKnown bool  // the entry that Scan emits next was compared when its content was read
	failed  error // the table cannot be read

	chunks map[chunk.ID]sums // with derived IDs
}

// sums are the SHA-256 of a chunk's bytes, as far as it is known.
type sums struct{ inTar, inUnit chunk.ID }

func (a *auditor) read(limits tree.Limits) error {
	plain, err := compress.Layer(&a.parts)
	if err != nil {
		return err
	}
	defer plain.Close()
	sum := sha256.New()
	err = tree.Scan(io.TeeReader(plain, sum), limits, a.content, func(e *tree.Entry) error {
		if a.isKnown {
			a.isKnown = false
			return nil
		}
		_, err := a.match(e)
		return err
	})
	if err != nil {
		return err
	}
	if e, err := a.next(); err == nil {
		return differs("it lacks the entry %q", e.Name)
	} else if err != io.EOF {
		return err
	}
	if got := chunk.ID(sum.Sum(nil)); got != a.claims.DiffID {
		return differs("its diffID is %s, and the image's config says %s", got, a.claims.DiffID)
	}
	return nil
}

// next returns the next entry that the table lists.
func (a *auditor) next() (*tree.Entry, error) {
	for {
		e, err := a.claims.Source.Next()
		if err != nil && err != io.EOF {
			a.failed = err
		}
		if err != nil || e.Type != tar.TypeXGlobalHeader {
			return e, err
		}
	}
}

// match returns what the table says about an entry of the tar, or nil if it leaves it out.
func (a *auditor) match(e *tree.Entry) (*tree.Entry, error) {
	if e.Type == tar.TypeXGlobalHeader || a.claims.Hides != nil && a.claims.Hides(e.Name) {
		return nil, nil
	}
	claimed, err := a.next()
	if err == io.EOF {
		return nil, differs("its table lacks the entry %q", e.Name)
	}
	if err != nil {
		return nil, err
	}
	if what := difference(e, claimed); what != "" {
		return nil, differs("entry %q: its %s differs from that of %q in the table", e.Name, what, claimed.Name)
	}
	return claimed, nil
}

// content compares the bytes of a file. It implements tree.Scan's content.
func (a *auditor) content(e *tree.Entry, r io.Reader) error {
	a.isKnown = true
	if e.Size <= tree.InlineLimit {
		e.Content.Inline = make([]byte, e.Size)
		if _, err := io.ReadFull(r, e.Content.Inline); err != nil {
			return err
		}
		r = bytes.NewReader(e.Content.Inline)
	} else {
		e.Content.Extents = []tree.Extent{{Length: e.Size}} // Scan wants a content, and nobody reads this one
	}
	claimed, err := a.match(e)
	if err != nil {
		return err
	}
	if claimed == nil {
		_, err := io.CopyN(io.Discard, r, e.Size)
		return err
	}
	if len(claimed.Content.Extents) == 0 {
		if e.Size > tree.InlineLimit || !bytes.Equal(e.Content.Inline, claimed.Content.Inline) {
			return differs("file %q has other bytes", e.Name)
		}
		return nil
	}
	return a.extents(e, claimed.Content.Extents, r)
}

func (a *auditor) extents(e *tree.Entry, extents []tree.Extent, r io.Reader) error {
	at := int64(0)
	for _, x := range extents {
		if x.Length <= 0 || x.Length > e.Size-at {
			return differs("file %q has %d bytes, and the chunks in its table others", e.Name, e.Size)
		}
		sum := sha256.New()
		var w io.Writer = sum
		zeros := &zeroes{}
		if x.IsHole() {
			w = zeros
		}
		if _, err := io.CopyN(w, r, x.Length); err != nil {
			return err
		}
		got := chunk.ID(sum.Sum(nil))
		switch {
		case x.IsHole() && zeros.others, !x.IsHole() && !layer.IsDerived(x.ID) && got != x.ID:
			return differs("file %q has other bytes at %d", e.Name, at)
		case layer.IsDerived(x.ID):
			s := a.chunks[x.ID]
			if !s.inTar.IsZero() && s.inTar != got {
				return differs("file %q has other bytes at %d", e.Name, at)
			}
			s.inTar = got
			a.chunks[x.ID] = s
		}
		at += x.Length
	}
	if at != e.Size {
		return differs("file %q has %d bytes, and the chunks in its table %d", e.Name, e.Size, at)
	}
	return nil
}

// decoded is called with each chunk of a unit with derived IDs.
func (a *auditor) decoded(id chunk.ID, plain []byte) {
	s := a.chunks[id]
	s.inUnit = chunk.Sum(plain)
	a.chunks[id] = s
}

// checkChunks checks that the chunks of files have the same bytes in their units.
func (a *auditor) checkChunks() error {
	if err := a.parts.failed; err != nil {
		a.failed = err
		return err
	}
	for id, s := range a.chunks {
		switch {
		case s.inTar.IsZero(): // no file has it
		case s.inUnit.IsZero():
			return differs("no unit has chunk %s", id)
		case s.inTar != s.inUnit:
			return differs("chunk %s has other bytes than its file", id)
		}
	}
	return nil
}

// zeroes is a writer that notes whether it got other bytes than zeros.
type zeroes struct{ others bool }

func (z *zeroes) Write(p []byte) (int, error) {
	z.others = z.others || len(bytes.Trim(p, "\x00")) > 0
	return len(p), nil
}
