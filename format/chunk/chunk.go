// Package chunk names runs of file contents. A chunk's ID is the SHA-256 of its plain bytes,
// wherever and however it is stored.
//
// It has the types that all other packages share (ID, Unit, Ref), the rule by which a file is
// split, and the errors that callers distinguish. It knows nothing of storage, compression and
// networks.
//
// Hazard: the splitting rule determines tree IDs. A changed constant in split.go changes the tree
// ID of every image, so it needs a new format number.
package chunk

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// Size is the length of an ID in bytes.
const Size = sha256.Size

// ID is the SHA-256 of a chunk's plain bytes. Packs and trees have IDs of the same type;
// docs/format.md defines which of their bytes are hashed.
type ID [Size]byte

// Sum returns the ID of plain.
func Sum(plain []byte) ID { return sha256.Sum256(plain) }

// ParseID parses 64 lower-case hexadecimal digits.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 2*Size {
		return ID{}, fmt.Errorf("parse ID %q: want %d hexadecimal digits", s, 2*Size)
	}
	var lower [2 * Size]byte // the digits of id, in lower case
	_, err := hex.Decode(id[:], []byte(s))
	hex.Encode(lower[:], id[:])
	if err != nil || string(lower[:]) != s {
		return ID{}, fmt.Errorf("parse ID %q: want %d lower-case hexadecimal digits", s, 2*Size)
	}
	return id, nil
}

// String returns the ID as 64 lower-case hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Short returns the first 12 digits, for logs.
func (id ID) Short() string { return hex.EncodeToString(id[:6]) }

// IsZero reports whether id is the zero value, which names no chunk.
func (id ID) IsZero() bool { return id == ID{} }

// MarshalText writes the ID as String does.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText parses what MarshalText writes.
func (id *ID) UnmarshalText(b []byte) (err error) {
	*id, err = ParseID(string(b))
	return err
}

// Scan reads an ID of Size bytes from a database. It implements sql.Scanner.
func (id *ID) Scan(stored any) error {
	b, _ := stored.([]byte)
	if len(b) != Size {
		return fmt.Errorf("scan ID: %T of %d bytes, want %d bytes", stored, len(b), Size)
	}
	*id = ID(b)
	return nil
}

// Unit names a unit: number N, from 0, of a pack. The zero value is an unknown unit.
type Unit struct {
	Pack ID
	N    uint32
}

// IsZero reports whether the unit is unknown.
func (u Unit) IsZero() bool { return u.Pack.IsZero() }

// String returns PACK/N, the end of the unit's path on a hub.
func (u Unit) String() string { return fmt.Sprintf("%s/%d", u.Pack, u.N) }

// Ref refers to a chunk.
type Ref struct {
	ID     ID
	Length uint32 // of the plain bytes
	Unit   Unit   // a hint to where the chunk is; may be outdated, wrong or zero
}

// ErrNotFound says that a source works but does not have the chunk.
var ErrNotFound = errors.New("not found")

// InvalidError says that a source returned wrong bytes: of another length or digest, or bytes that
// cannot be decoded.
type InvalidError struct {
	What string // the requested object: "chunk 1f2e…", "unit 1f2e…/3"
	Err  error
}

func (e *InvalidError) Error() string { return e.What + " is invalid: " + e.Err.Error() }

// Unwrap returns Err.
func (e *InvalidError) Unwrap() error { return e.Err }

// Check returns an *InvalidError unless plain are the bytes of the chunk.
func (ref Ref) Check(plain []byte) error {
	if len(plain) != int(ref.Length) {
		return &InvalidError{What: "chunk " + ref.ID.Short(),
			Err: fmt.Errorf("it has %d bytes, want %d", len(plain), ref.Length)}
	}
	if got := Sum(plain); got != ref.ID {
		return &InvalidError{What: "chunk " + ref.ID.Short(), Err: fmt.Errorf("its digest is %s", got.Short())}
	}
	return nil
}
