// Package tarball writes tar streams for tests, valid and invalid ones. For example,
// Of(Dir("a"), File("a/b", "hello"), Whiteout("a/c")) is a layer with three entries.
//
// It does not use archive/tar, which refuses to write the entries of hostile layers: numbers that
// overflow their field, wrong sizes, names outside the root. It validates nothing.
package tarball

import (
	"encoding/binary"
	"fmt"
	"path"
	"strconv"
	"strings"
)

const blockSize = 512

// Types of entries, as in the header's typeflag.
const (
	TypeFile    = '0'
	TypeLink    = '1'
	TypeSymlink = '2'
	TypeChar    = '3'
	TypeBlock   = '4'
	TypeDir     = '5'
	TypeFIFO    = '6'
	TypeGlobal  = 'g'
)

// DefaultTime is the default modification time of entries, in seconds since 1970.
const DefaultTime = 1_600_000_000

// An Item is a part of a tar stream: an Entry, or Raw bytes.
type Item interface{ appendTo(b []byte) []byte }

// Of returns the tar stream of the items, with the end-of-archive marker.
func Of(items ...Item) []byte { return append(Open(items...), make([]byte, 2*blockSize)...) }

// Open returns the tar stream of the items without the end-of-archive marker.
func Open(items ...Item) []byte {
	var b []byte
	for _, item := range items {
		b = item.appendTo(b)
	}
	return b
}

// Raw is a sequence of bytes that is written unchanged.
type Raw []byte

func (r Raw) appendTo(b []byte) []byte { return append(b, r...) }

// An Entry is a header with its content. Numbers that overflow their octal field are written in
// base 256, and long names as PAX records.
type Entry struct {
	Type     byte
	Name     string
	Linkname string
	Mode     int64
	UID, GID int64
	Sec      int64 // modification time
	Nsec     int64 // written as a PAX record if not 0
	Major    int64
	Minor    int64
	Size     int64       // in the header; Content may have another length
	Records  [][2]string // PAX records: key, value
	Content  string
	Long     bool // write long names as GNU's L and K entries, not as PAX records
	Sparse   bool // for an entry with GNU.sparse records: the header has the length of Content, not Size
}

// An Option changes an entry.
type Option func(*Entry)

func newEntry(kind byte, name string, mode int64, options []Option) Entry {
	e := Entry{Type: kind, Name: name, Mode: mode, Sec: DefaultTime}
	for _, o := range options {
		o(&e)
	}
	return e
}

// Mode sets the permission bits.
func Mode(mode int64) Option { return func(e *Entry) { e.Mode = mode } }

// Owner sets user and group.
func Owner(uid, gid int64) Option { return func(e *Entry) { e.UID, e.GID = uid, gid } }

// Time sets the modification time.
func Time(sec, nsec int64) Option { return func(e *Entry) { e.Sec, e.Nsec = sec, nsec } }

// PAX adds a PAX record.
func PAX(key, value string) Option {
	return func(e *Entry) { e.Records = append(e.Records, [2]string{key, value}) }
}

// Xattr adds an extended attribute.
func Xattr(name, value string) Option { return PAX("SCHILY.xattr."+name, value) }

// Claim sets the size in the header. The size may differ from the length of the content.
func Claim(size int64) Option { return func(e *Entry) { e.Size = size } }

// Device sets the device number of an entry of any type.
func Device(major, minor int64) Option { return func(e *Entry) { e.Major, e.Minor = major, minor } }

// Long makes an entry's long names GNU's L and K entries instead of PAX records.
func Long(e *Entry) { e.Long = true }

// File is a regular file.
func File(name, content string, options ...Option) Entry {
	set := func(e *Entry) { e.Content, e.Size = content, int64(len(content)) }
	return newEntry(TypeFile, name, 0o644, append([]Option{set}, options...))
}

// Dir is a directory.
func Dir(name string, options ...Option) Entry {
	return newEntry(TypeDir, strings.TrimSuffix(name, "/")+"/", 0o755, options)
}

// Symlink is a symbolic link.
func Symlink(name, target string, options ...Option) Entry {
	e := newEntry(TypeSymlink, name, 0o777, options)
	e.Linkname = target
	return e
}

// Link is a hard link to an earlier entry.
func Link(name, target string, options ...Option) Entry {
	e := newEntry(TypeLink, name, 0o644, options)
	e.Linkname = target
	return e
}

// Char is a character device.
func Char(name string, major, minor int64, options ...Option) Entry {
	return newEntry(TypeChar, name, 0o600, append([]Option{Device(major, minor)}, options...))
}

// Block is a block device.
func Block(name string, major, minor int64, options ...Option) Entry {
	return newEntry(TypeBlock, name, 0o600, append([]Option{Device(major, minor)}, options...))
}

// FIFO is a named pipe.
func FIFO(name string, options ...Option) Entry { return newEntry(TypeFIFO, name, 0o600, options) }

// Whiteout removes name from the layers below.
func Whiteout(name string, options ...Option) Entry {
	dir, base := path.Split(name)
	return newEntry(TypeFile, dir+".wh."+base, 0o644, options)
}

// Opaque hides the directory's entries in the layers below.
func Opaque(dir string, options ...Option) Entry {
	return newEntry(TypeFile, path.Join(dir, ".wh..wh..opq"), 0o644, options)
}

// Global is a global PAX header with a name.
func Global(name string, options ...Option) Entry { return newEntry(TypeGlobal, name, 0o644, options) }

// Other is an entry of any type.
func Other(kind byte, name string, options ...Option) Entry {
	return newEntry(kind, name, 0o644, options)
}

func (e Entry) appendTo(b []byte) []byte {
	records := e.Records
	name, link := e.Name, e.Linkname
	for _, long := range []struct {
		value *string
		key   string
		gnu   byte
	}{{&name, "path", 'L'}, {&link, "linkpath", 'K'}} {
		if len(*long.value) <= 100 {
			continue
		}
		if e.Long {
			b = header{kind: long.gnu, name: "././@LongLink", size: int64(len(*long.value) + 1)}.appendTo(b)
			b = pad(append(append(b, *long.value...), 0))
		} else {
			records = append(records, [2]string{long.key, *long.value})
		}
		*long.value = (*long.value)[:100]
	}
	if e.Nsec != 0 {
		records = append(records, [2]string{"mtime", fmt.Sprintf("%d.%09d", e.Sec, e.Nsec)})
	}
	content := e.Content
	if e.Type == TypeGlobal {
		content, e.Size, records = encodeRecords(records), int64(len(encodeRecords(records))), nil
	}
	if len(records) > 0 {
		text := encodeRecords(records)
		b = header{kind: 'x', name: "PaxHeaders/x", size: int64(len(text))}.appendTo(b)
		b = pad(append(b, text...))
	}
	h := header{
		kind: e.Type, name: name, link: link, mode: e.Mode, uid: e.UID, gid: e.GID,
		size: e.Size, sec: e.Sec, major: e.Major, minor: e.Minor,
	}
	if e.Sparse {
		h.size = int64(len(content))
	}
	return pad(append(h.appendTo(b), content...))
}

func pad(b []byte) []byte {
	return append(b, make([]byte, (blockSize-len(b)%blockSize)%blockSize)...)
}

// encodeRecords returns PAX records. Each consists of its length, a blank, key=value and a line
// feed.
func encodeRecords(records [][2]string) string {
	var b strings.Builder
	for _, r := range records {
		rest := " " + r[0] + "=" + r[1] + "\n"
		n := len(rest)
		for n != len(rest)+len(strconv.Itoa(n)) {
			n = len(rest) + len(strconv.Itoa(n))
		}
		b.WriteString(strconv.Itoa(n) + rest)
	}
	return b.String()
}

// header is one block in the ustar format.
type header struct {
	kind                      byte
	name, link                string
	mode, uid, gid, size, sec int64
	major, minor              int64
}

func (h header) appendTo(b []byte) []byte {
	block := make([]byte, blockSize)
	copy(block[0:100], h.name)
	number(block[100:108], h.mode)
	number(block[108:116], h.uid)
	number(block[116:124], h.gid)
	number(block[124:136], h.size)
	number(block[136:148], h.sec)
	block[156] = h.kind
	copy(block[157:257], h.link)
	copy(block[257:265], "ustar\x0000")
	number(block[329:337], h.major)
	number(block[337:345], h.minor)
	Sum(block)
	return append(b, block...)
}

// Sum sets the checksum of a header block, after a test has changed the block.
func Sum(block []byte) {
	copy(block[148:156], "        ")
	sum := 0
	for _, c := range block[:blockSize] {
		sum += int(c)
	}
	copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

// number writes v to a field, in octal if it fits, otherwise in base 256.
func number(field []byte, v int64) {
	digits := len(field) - 1
	if v >= 0 && v < 1<<min(3*digits, 62) {
		copy(field, fmt.Sprintf("%0*o", digits, v))
		return
	}
	var wide [16]byte
	if v < 0 {
		for i := range wide[:8] {
			wide[i] = 0xff
		}
	}
	binary.BigEndian.PutUint64(wide[8:], uint64(v))
	copy(field, wide[len(wide)-len(field):])
	field[0] |= 0x80
}
