package stargz

import (
	"archive/tar"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"lighter/format/tree"
)

// row is a row of a table. The names and the meaning of its fields are those of estargz/types.go in
// stargz-snapshotter and of pkg/chunked/internal/minimal in containers/storage.
type row struct {
	Type     string `json:"type"` // a key of types, or "chunk"
	Name     string `json:"name"`
	LinkName string `json:"linkName,omitempty"`
	Mode     int64  `json:"mode,omitempty"` // as in the tar header
	UID      int    `json:"uid,omitempty"`
	GID      int    `json:"gid,omitempty"`
	ModTime  string `json:"modtime,omitempty"` // RFC 3339; empty: 1970
	// Other times and the names of owners are not used. They are there for other readers.
	AccessTime string            `json:"accesstime,omitempty"`
	ChangeTime string            `json:"changetime,omitempty"`
	UserName   string            `json:"userName,omitempty"`
	GroupName  string            `json:"groupName,omitempty"`
	DevMajor   int64             `json:"devMajor,omitempty"`
	DevMinor   int64             `json:"devMinor,omitempty"`
	Xattrs     map[string][]byte `json:"xattrs,omitempty"` // values in base64

	Size        int64  `json:"size,omitempty"`        // of a regular file
	Digest      string `json:"digest,omitempty"`      // of a regular file
	Offset      int64  `json:"offset,omitempty"`      // in the blob: where a gzip member or zstd frame begins
	InnerOffset int64  `json:"innerOffset,omitempty"` // of the chunk's first byte in what is decompressed from there
	EndOffset   int64  `json:"endOffset,omitempty"`   // in the blob: where the file's last frame ends; containers/storage only
	ChunkOffset int64  `json:"chunkOffset,omitempty"` // in the file
	ChunkSize   int64  `json:"chunkSize,omitempty"`   // 0: the rest of the file
	ChunkDigest string `json:"chunkDigest,omitempty"` // empty, if the file has one chunk: Digest
	ChunkType   string `json:"chunkType,omitempty"`   // "zeros": a hole; containers/storage only
}

const (
	typeChunk = "chunk" // a further chunk of the file before it
	zeros     = "zeros"

	lost = "\uFFFD" // stands for bytes that are not UTF-8
)

var types = map[string]byte{
	"reg": tar.TypeReg, "hardlink": tar.TypeLink, "symlink": tar.TypeSymlink, "dir": tar.TypeDir,
	"char": tar.TypeChar, "block": tar.TypeBlock, "fifo": tar.TypeFifo,
}

// decode reads a row. Names of fields that a row does not have are skipped. Strings that are often
// those of the last row are shared with it.
func (r *row) decode(dec *jsontext.Decoder, last *row) error {
	return readFields(dec, func(key []byte) error {
		switch string(key) {
		case "type":
			return readText(dec, &r.Type, last.Type)
		case "name":
			return readText(dec, &r.Name, last.Name)
		case "linkName":
			return readText(dec, &r.LinkName, "")
		case "mode":
			return readNumber(dec, &r.Mode)
		case "uid":
			return readNumber(dec, &r.UID)
		case "gid":
			return readNumber(dec, &r.GID)
		case "modtime":
			return readText(dec, &r.ModTime, last.ModTime)
		case "devMajor":
			return readNumber(dec, &r.DevMajor)
		case "devMinor":
			return readNumber(dec, &r.DevMinor)
		case "xattrs":
			return r.decodeXattrs(dec)
		case "size":
			return readNumber(dec, &r.Size)
		case "digest":
			return readText(dec, &r.Digest, "")
		case "offset":
			return readNumber(dec, &r.Offset)
		case "innerOffset":
			return readNumber(dec, &r.InnerOffset)
		case "endOffset":
			return readNumber(dec, &r.EndOffset)
		case "chunkOffset":
			return readNumber(dec, &r.ChunkOffset)
		case "chunkSize":
			return readNumber(dec, &r.ChunkSize)
		case "chunkDigest":
			return readText(dec, &r.ChunkDigest, r.Digest)
		case "chunkType":
			return readText(dec, &r.ChunkType, last.ChunkType)
		}
		return skip(dec, key)
	})
}

func (r *row) decodeXattrs(dec *jsontext.Decoder) error {
	r.Xattrs = map[string][]byte{}
	return readFields(dec, func(key []byte) error {
		name, err := jsontext.AppendUnquote(nil, append(append([]byte{'"'}, key...), '"'))
		value := ""
		if err == nil {
			err = readText(dec, &value, "")
		}
		if err == nil {
			r.Xattrs[string(name)], err = base64.StdEncoding.DecodeString(value)
		}
		return err
	})
}

// entry sets e to the entry of a row that is no chunk, without its content.
func (r *row) entry(e *tree.Entry) error {
	kind, ok := types[r.Type]
	if !ok {
		return fmt.Errorf("unknown type %q", shorten(r.Type))
	}
	if err := checkName(r.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	*e = tree.Entry{Type: kind, Name: r.Name, Mode: r.Mode & 0o7777, UID: r.UID, GID: r.GID}
	switch kind {
	case tar.TypeLink, tar.TypeSymlink:
		if err := checkName(r.LinkName); err != nil {
			return fmt.Errorf("link target: %w", err)
		}
		e.Linkname = r.LinkName
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		e.Major, e.Minor = r.DevMajor, r.DevMinor
	case tar.TypeReg:
		if r.Size < 0 {
			return fmt.Errorf("file of %d bytes", r.Size)
		}
		if tree.LeavesFile(r.Name) {
			e.Size = r.Size
		}
	}
	var err error
	if e.Mtime, err = r.mtime(); err != nil {
		return err
	}
	e.Xattrs, err = r.xattrs()
	return err
}

// checkName refuses names that differ from those in the tar.
func checkName(name string) error {
	if strings.Contains(name, lost) {
		return errors.New("it has bytes that are not UTF-8, which the table has lost")
	}
	if strings.IndexByte(name, 0) >= 0 {
		return errors.New("it has a NUL")
	}
	return nil
}

// mtime returns the modification time that containerd sets: 1970 for times that it cannot
// represent. stargz-snapshotter also writes years that RFC 3339 does not have, before 0 and after
// 9999, and reads them as 1970.
func (r *row) mtime() (tree.Time, error) {
	if r.ModTime == "" {
		return tree.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, r.ModTime)
	if err != nil {
		if year, _, found := strings.Cut(r.ModTime, "-"); found && (len(year) > 4 || year == "") {
			return tree.Time{}, nil
		}
		return tree.Time{}, fmt.Errorf("modification time %q is not in RFC 3339", shorten(r.ModTime))
	}
	return boundTime(t), nil
}

func boundTime(t time.Time) tree.Time {
	if t.Unix() < 0 || t.After(time.Unix(0, math.MaxInt64)) {
		return tree.Time{}
	}
	return tree.Time{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
}

func (r *row) xattrs() ([]tree.Xattr, error) {
	if len(r.Xattrs) == 0 {
		return nil, nil
	}
	xattrs := make([]tree.Xattr, 0, len(r.Xattrs))
	for name, value := range r.Xattrs {
		if err := checkName(name); err != nil {
			return nil, fmt.Errorf("extended attribute %q: %w", shorten(name), err)
		}
		xattrs = append(xattrs, tree.Xattr{Name: name, Value: value})
	}
	slices.SortFunc(xattrs, func(a, b tree.Xattr) int { return cmp.Compare(a.Name, b.Name) })
	return xattrs, nil
}

// cleanName returns a name without ".", ".." and slashes at its ends: the path below the root.
func cleanName(name string) string { return path.Clean("/" + name)[1:] }
