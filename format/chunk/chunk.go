// Package chunk promises one thing: a run of a file's bytes has one name, the
// SHA-256 of those bytes, wherever it lies and however it travels.
//
// It holds the nouns that every other package shares (ID, Unit, Ref), the
// rule by which a file is split, and the errors that a caller must be able to
// tell apart. It refuses to know where chunks are stored, how they are
// compressed, or that there is a network.
//
// Hazard: the splitting rule is part of the tree ID. Changing a constant in
// split.go changes the tree ID of every image, so it needs a new format number.
package chunk

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// Size is the length of an ID in bytes.
const Size = sha256.Size

// ID is the SHA-256 of a chunk's plain bytes. Packs and trees are named the
// same way, each by the SHA-256 of bytes that docs/format.md defines.
type ID [Size]byte

// Sum returns the ID of plain.
func Sum(plain []byte) ID { return sha256.Sum256(plain) }

// ParseID reads 64 lower-case hexadecimal digits.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 2*Size {
		return ID{}, fmt.Errorf("%q is not an ID: want %d hexadecimal digits", s, 2*Size)
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil || hex.EncodeToString(id[:]) != s {
		return ID{}, fmt.Errorf("%q is not an ID: want %d lower-case hexadecimal digits", s, 2*Size)
	}
	return id, nil
}

// String returns the ID as 64 lower-case hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Short returns the first 12 digits, for logs that people read.
func (id ID) Short() string { return hex.EncodeToString(id[:6]) }

// IsZero tells whether id is the zero value, which names nothing.
func (id ID) IsZero() bool { return id == ID{} }

// MarshalText writes the ID as String does.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (id *ID) UnmarshalText(b []byte) (err error) {
	*id, err = ParseID(string(b))
	return err
}

// Unit names one unit: the N-th (from 0) of a pack. The zero value means that
// nobody knows in which unit a chunk lies.
type Unit struct {
	Pack ID
	N    uint32
}

// IsZero tells whether the unit is unknown.
func (u Unit) IsZero() bool { return u.Pack.IsZero() }

// String names the unit as its path on a hub ends: PACK/N.
func (u Unit) String() string { return fmt.Sprintf("%s/%d", u.Pack, u.N) }

// Ref says which chunk is meant and how long its plain bytes are. Unit is a
// hint where to look first; it may be old, wrong or zero, and never decides
// what the bytes are.
type Ref struct {
	ID     ID
	Length uint32
	Unit   Unit
}

// ErrNotFound says that a source works but does not have the chunk.
var ErrNotFound = errors.New("not found")

// InvalidError says that a source gave bytes which are not what was asked
// for: of the wrong length, of another digest, or not decodable.
type InvalidError struct {
	What string // what was asked for: "chunk 1f2e…", "unit 1f2e…/3"
	Err  error  // what is wrong with it
}

func (e *InvalidError) Error() string { return e.What + " is invalid: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *InvalidError) Unwrap() error { return e.Err }

// Check returns an *InvalidError unless plain is the chunk that ref names.
func (ref Ref) Check(plain []byte) error {
	if len(plain) != int(ref.Length) {
		return &InvalidError{What: "chunk " + ref.ID.Short(),
			Err: fmt.Errorf("%d bytes where %d belong", len(plain), ref.Length)}
	}
	if got := Sum(plain); got != ref.ID {
		return &InvalidError{What: "chunk " + ref.ID.Short(), Err: fmt.Errorf("its digest is %s", got.Short())}
	}
	return nil
}
