package tree

import "strconv"

// Entry is an entry of a layer, as in its tar header: names are not cleaned and links not followed.
type Entry struct {
	Type     byte // archive/tar's Typeflag, never 0
	Name     string
	Linkname string // of hard links and symlinks
	Mode     int64  // the low 12 bits of the header's mode
	UID, GID int
	Mtime    Time    // as in the header; 1970 if it is outside 1970…2262, as in containerd
	Major    int64   // device number, of block and character devices and of FIFOs
	Minor    int64   //
	Size     int64   // of regular files, bytes of Content
	Xattrs   []Xattr // all SCHILY.xattr records of the header, sorted by name
	Content  Content // of regular files
}

// Limits bound the resources that a layer or a chain takes. Zero means no limit.
type Limits struct {
	// Entries bounds the entries of all layers of a chain, including directories that have no entry
	// of their own.
	Entries int64
	// Bytes bounds the tar stream of one layer, and the sum of its files' sizes, which is larger if
	// files are sparse.
	Bytes int64
}

// LimitError says which limit a layer or a chain exceeds: one of Limits, or one of Apply.
type LimitError struct {
	What  string // the limited resource: "entries", "bytes", …
	Limit int64
}

func (e *LimitError) Error() string {
	return "more than the limit of " + strconv.FormatInt(e.Limit, 10) + " " + e.What
}

// EntryError says which entry of a layer containerd would not unpack.
type EntryError struct {
	Layer int    // index in the chain, from the lowest
	Entry string // the name in the tar header
	Err   error
}

func (e *EntryError) Error() string {
	return "layer " + strconv.Itoa(e.Layer) + ": entry " + strconv.Quote(e.Entry) + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *EntryError) Unwrap() error { return e.Err }
