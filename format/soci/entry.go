package soci

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"lighter/format/tree"
)

// Fields of an entry.
const (
	fileName = iota
	fileType
	fileOffset
	fileSize
	fileLinkname
	fileMode
	fileUID
	fileGID
	fileUname
	fileGname
	fileModTime
	fileMajor
	fileMinor
	fileRecords
)

// Fields of a PAX record, which the schema calls an Xattr.
const (
	recordKey = iota
	recordValue
)

// kinds has the types of entries by their names in zTOCs. SOCI makes no zTOC of a layer that has an
// entry of another type.
var kinds = map[string]byte{
	"hardlink": tar.TypeLink, "symlink": tar.TypeSymlink, "dir": tar.TypeDir, "reg": tar.TypeReg,
	"char": tar.TypeChar, "block": tar.TypeBlock, "fifo": tar.TypeFifo,
}

const (
	tarBlock = 512
	// maxRecords bounds the PAX records of an entry in bytes, as archive/tar does.
	maxRecords   = 1 << 20
	sparsePrefix = "GNU.sparse."
)

var errSparse = errors.New("sparse file: a zTOC does not say where its bytes are")

// Layer returns a reader of the layer's entries, for tree.Apply. They are as tree.Scan returns
// them. For each regular file that is not empty and becomes part of the layer, it calls content
// with the offset of the file's e.Size bytes in the plain layer; content sets e.Content.
func (t *Table) Layer(content func(e *tree.Entry, offset int64) error) tree.LayerSource {
	files := t.files
	files.b = newBuffer(t.data)
	return &entries{files: files, end: t.PlainSize, content: content}
}

// entries reads the entries of a zTOC. It is a tree.LayerSource.
type entries struct {
	files   list
	next    int   // entry
	at      int64 // in the plain layer: of the next entry's header, or before it
	end     int64 // of the archive
	content func(e *tree.Entry, offset int64) error
}

// Next implements tree.LayerSource.
func (l *entries) Next() (*tree.Entry, error) {
	if l.next == l.files.n {
		return nil, io.EOF
	}
	e, offset, err := l.entry()
	if err == nil && e.Size > 0 {
		err = l.content(e, offset)
	}
	if err != nil {
		return nil, fmt.Errorf("entry %d of a zTOC: %w", l.next, err)
	}
	l.next++
	return e, nil
}

// checkEntries reads all entries once.
func (t *Table) checkEntries() error {
	l := t.Layer(func(*tree.Entry, int64) error { return nil })
	for {
		if _, err := l.Next(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// entry reads the next entry, and the offset of its content.
func (l *entries) entry() (*tree.Entry, int64, error) {
	file := l.files.table(l.next)
	h := &tar.Header{Name: file.string(fileName), Linkname: file.string(fileLinkname), Mode: file.int64(fileMode),
		Uid: int(file.uint32(fileUID)), Gid: int(file.uint32(fileGID)), Size: file.int64(fileSize),
		Devmajor: file.int64(fileMajor), Devminor: file.int64(fileMinor)}
	offset, kind, modTime := file.int64(fileOffset), file.raw(fileType), file.raw(fileModTime)
	if err := l.files.b.err; err != nil {
		return nil, 0, err
	}
	var known bool
	if h.Typeflag, known = kinds[string(kind)]; !known {
		return nil, 0, fmt.Errorf("%q has the unknown type %q", shorten(h.Name), shorten(string(kind)))
	}
	// SOCI leaves out times whose year has not four digits. containerd sets 1970 for them.
	if len(modTime) > 0 {
		if err := h.ModTime.UnmarshalText(modTime); err != nil {
			return nil, 0, fmt.Errorf("%q: time: %w", shorten(h.Name), err)
		}
	} else {
		h.ModTime = time.Unix(0, 0)
	}
	if err := l.place(h, offset); err != nil {
		return nil, 0, fmt.Errorf("%q: %w", shorten(h.Name), err)
	}
	var err error
	if h.PAXRecords, err = records(file.list(fileRecords)); err != nil {
		return nil, 0, fmt.Errorf("%q: %w", shorten(h.Name), err)
	}
	return tree.NewEntry(h), offset, l.files.b.err
}

// place checks that an entry's content is inside the archive, and behind its header, which is
// behind the previous entry.
func (l *entries) place(h *tar.Header, offset int64) error {
	size := h.Size
	if h.Typeflag != tar.TypeReg {
		size = 0 // as in archive/tar, whatever the header says
	}
	switch {
	case offset < l.at+tarBlock || offset%tarBlock != 0:
		return fmt.Errorf("content at plain byte %d, the header is at %d or later", offset, l.at)
	case size < 0 || offset > l.end || size > l.end-offset:
		return fmt.Errorf("content of %d bytes at %d in an archive of %d", size, offset, l.end)
	}
	l.at = (offset + size + tarBlock - 1) / tarBlock * tarBlock
	return nil
}

// records reads the PAX records of an entry.
func records(from list) (map[string]string, error) {
	if from.n == 0 {
		return nil, nil
	}
	all := map[string]string{}
	size := 0
	for i := range from.n {
		record := from.table(i)
		key, value := record.string(recordKey), record.string(recordValue)
		if from.b.err != nil {
			return nil, from.b.err
		}
		if strings.HasPrefix(key, sparsePrefix) {
			return nil, errSparse
		}
		if size += len(key) + len(value); size > maxRecords {
			return nil, fmt.Errorf("PAX records of more than %d bytes", maxRecords)
		}
		if _, twice := all[key]; twice {
			return nil, fmt.Errorf("PAX record %q comes twice", shorten(key))
		}
		all[key] = value
	}
	return all, nil
}
