package stargz

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"lighter/format/chunk"
)

// Annotations of a layer's descriptor.
const (
	// TableDigest has the SHA-256 of the plain table. stargz-snapshotter writes it, for eStargz and
	// for zstd:chunked (docs/estargz.md in its repository).
	TableDigest = "containerd.io/snapshot/stargz/toc.digest"

	// The place of a zstd:chunked table, "offset:length:plain length:1", and the SHA-256 of its
	// stored bytes, as containers/storage writes them. Position and Checksum are the names that
	// stargz-snapshotter writes, and that older versions of containers/storage wrote, such as that
	// of Skopeo 1.9 in Debian 12.
	ContainersPosition = "io.github.containers.zstd-chunked.manifest-position"
	ContainersChecksum = "io.github.containers.zstd-chunked.manifest-checksum"
	Position           = "io.containers.zstd-chunked.manifest-position"
	Checksum           = "io.containers.zstd-chunked.manifest-checksum"

	// tarSplitPosition has the place of the tar-split, "offset:length:plain length". Its digest is
	// in the table.
	tarSplitPosition = "io.github.containers.zstd-chunked.tarsplit-position"
)

// Bounds of a table.
const (
	// MaxStored bounds the stored bytes of a table. The table of a million files has about 60 MB.
	MaxStored = 192 << 20
	// MaxPlain bounds the plain bytes of a table, and so the time that Decode takes: about 15 s.
	// Nothing keeps them in memory. The table of a million files has 400 to 600 MB.
	MaxPlain = 1 << 30
	// maxRow bounds the plain bytes of a row: a file's names and extended attributes.
	maxRow = 4 << 20
	// maxMemory bounds the bytes of memory that a Layer takes, as Decode estimates them: about 1.2
	// million files of one chunk, or 3 million chunks of large files.
	maxMemory = 512 << 20
)

// Format is the way in which a layer is written.
type Format int

const (
	EStargz        Format = iota + 1 // gzip members
	StargzZstd                       // zstd:chunked of stargz-snapshotter
	ContainersZstd                   // zstd:chunked of containers/storage
)

func (f Format) String() string {
	switch f {
	case EStargz:
		return "eStargz"
	case StargzZstd:
		return "zstd:chunked of stargz-snapshotter"
	case ContainersZstd:
		return "zstd:chunked of containers/storage"
	}
	return "unknown format " + strconv.Itoa(int(f))
}

// Table says where the table of a layer lies, and what it has to match.
type Table struct {
	Format Format

	// External says that the table is not in the layer's blob: it is the only layer of another
	// image, named TAG-esgztoc in the same repository, with the layer's digest in the annotation
	// containerd.io/snapshot/stargz/layer.digest. Offset and Length are 0 then.
	External bool

	Offset, Length int64 // of the table's stored bytes in the blob
	PlainLength    int64 // of the JSON; 0: not known

	Stored chunk.ID // SHA-256 of the stored bytes; zero: not known
	Plain  chunk.ID // SHA-256 of the JSON; zero: not known

	// DataEnd is the offset in the blob at which the last file's bytes end, at the latest.
	DataEnd int64
}

// Verifiable reports whether the table's bytes are bound to the layer's descriptor. If they are
// not, they can be believed only by a caller that has read the whole blob and checked its digest.
func (t Table) Verifiable() bool { return !t.Stored.IsZero() || !t.Plain.IsZero() }

// Locate returns the place of the table in a layer's blob of size bytes, if the annotations of its
// descriptor say it: those of zstd:chunked do. Otherwise found is false, and LocateByFooter needs
// the end of the blob.
func Locate(annotations map[string]string, size int64) (t Table, found bool, err error) {
	if t, found, err = locate(annotations); err != nil || !found {
		return Table{}, false, err
	}
	// A skippable frame around the table has a header of 8 bytes.
	t.DataEnd = t.Offset - skippableHeader
	if err := t.check(size); err != nil {
		return Table{}, false, err
	}
	return t, true, nil
}

// locate returns the place of the table, unchecked, and all digests that the annotations have.
func locate(annotations map[string]string) (t Table, found bool, err error) {
	position, found := annotations[Position]
	if p, ok := annotations[ContainersPosition]; ok {
		if found && p != position {
			return Table{}, false, fmt.Errorf("two places of the table: %q and %q", shorten(position), shorten(p))
		}
		position, found = p, true
	}
	if found {
		if t, err = parsePosition(position); err != nil {
			return Table{}, false, fmt.Errorf("annotation of the table's place: %w", err)
		}
	}
	for _, d := range []struct {
		key string
		id  *chunk.ID
	}{{TableDigest, &t.Plain}, {Checksum, &t.Stored}, {ContainersChecksum, &t.Stored}} {
		if err := addDigest(d.id, annotations[d.key]); err != nil {
			return Table{}, false, fmt.Errorf("annotation %s: %w", d.key, err)
		}
	}
	t.Format = zstdFormat(t.Plain)
	return t, found, nil
}

// zstdFormat returns the dialect of zstd:chunked: only stargz-snapshotter annotates the digest of
// the plain table, and it always does.
func zstdFormat(plain chunk.ID) Format {
	if plain.IsZero() {
		return ContainersZstd
	}
	return StargzZstd
}

// addDigest sets *id to the digest of a text, unless that is empty. It returns an error if *id is
// another one.
func addDigest(id *chunk.ID, text string) error {
	if text == "" {
		return nil
	}
	parsed, err := parseDigest(text)
	if err != nil {
		return err
	}
	if !id.IsZero() && *id != parsed {
		return fmt.Errorf("two digests of the table: %s and %s", id.Short(), parsed.Short())
	}
	*id = parsed
	return nil
}

// parseDigest parses "sha256:" and 64 hexadecimal digits. The digest of zeros is refused, as a zero
// ID means that there is none.
func parseDigest(s string) (chunk.ID, error) {
	digits, ok := strings.CutPrefix(s, "sha256:")
	if !ok {
		return chunk.ID{}, fmt.Errorf("digest %q is not a SHA-256", shorten(s))
	}
	id, err := chunk.ParseID(digits)
	if err == nil && id.IsZero() {
		err = errors.New("digest of zeros")
	}
	if err != nil {
		return chunk.ID{}, fmt.Errorf("digest %q: %w", shorten(s), err)
	}
	return id, nil
}

// parsePosition parses "offset:length:plain length:type".
func parsePosition(s string) (Table, error) {
	fields := strings.Split(s, ":")
	if len(fields) != 4 {
		return Table{}, fmt.Errorf("%q: want offset:length:plain length:type", shorten(s))
	}
	var n [4]int64
	for i, field := range fields {
		var err error
		if n[i], err = strconv.ParseInt(field, 10, 64); err != nil || n[i] < 0 {
			return Table{}, fmt.Errorf("%q: want four numbers", shorten(s))
		}
	}
	return Table{Offset: n[0], Length: n[1], PlainLength: n[2]}, checkType(n[3])
}

// checkType checks the type of a zstd:chunked table. 1 is that of CRFS, which is stargz.
func checkType(n int64) error {
	if n != 1 {
		return fmt.Errorf("table of type %d, want 1", n)
	}
	return nil
}

// check checks that the table lies within a blob of size bytes, and within the bounds.
func (t Table) check(size int64) error {
	switch {
	case t.External:
		return nil
	case t.Offset <= 0 || t.Length <= 0 || t.DataEnd < 0 || t.Offset > size || t.Length > size-t.Offset:
		return fmt.Errorf("table at %d+%d in a layer of %d bytes", t.Offset, t.Length, size)
	case t.Length > MaxStored:
		return fmt.Errorf("table of %d stored bytes, the limit is %d", t.Length, int64(MaxStored))
	case t.PlainLength < 0 || t.PlainLength > MaxPlain:
		return fmt.Errorf("table of %d plain bytes, the limit is %d", t.PlainLength, int64(MaxPlain))
	}
	return nil
}

// shorten returns the beginning of a text of others, for errors.
func shorten(s string) string {
	const most = 100
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
