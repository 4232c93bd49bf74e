package tree

import "strconv"

// Entry is one entry of a layer, as its tar header says it and before anything
// is resolved: names are not cleaned, links are not followed.
type Entry struct {
	Type     byte // archive/tar's Typeflag, never 0
	Name     string
	Linkname string // of hard links and symlinks
	Mode     int64  // the low 12 bits of the header's mode; the rest counts for nothing
	UID, GID int
	Mtime    Time    // as the header says, bounded as containerd bounds it (outside of 1970…2262: 1970)
	Major    int64   // device number, of block and character devices and of FIFOs
	Minor    int64   //
	Size     int64   // of regular files: length of Content in bytes
	Xattrs   []Xattr // the header's SCHILY.xattr records, all of them, sorted by name
	Content  Content // of regular files
}

// Limits bound what a layer or a chain may ask of the machine. Zero means no
// limit of that kind.
type Limits struct {
	// Entries bounds the entries of all layers of a chain together, and with
	// them the directories that they make without naming them.
	Entries int64
	// Bytes bounds the plain bytes of one layer, as its tar stream has them
	// and (sparse files) as its files have them.
	Bytes int64
}

// LimitError says which limit a layer or a chain goes beyond: one of Limits, or
// one that Apply sets itself.
type LimitError struct {
	What  string // what there is too much of: "entries", "bytes", …
	Limit int64
}

func (e *LimitError) Error() string {
	return "more than the limit of " + strconv.FormatInt(e.Limit, 10) + " " + e.What
}

// EntryError says which entry of which layer containerd would not unpack, and
// why.
type EntryError struct {
	Layer int    // index in the chain, 0 is the lowest
	Entry string // the entry's name as the tar header has it
	Err   error
}

func (e *EntryError) Error() string {
	return "layer " + strconv.Itoa(e.Layer) + ": entry " + strconv.Quote(e.Entry) + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *EntryError) Unwrap() error { return e.Err }
