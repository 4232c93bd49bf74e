package repository

import (
	"fmt"
	"hash"
	"io"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
)

// verified reads a blob, and compares its digest at the end.
type verified struct {
	from io.Reader
	want digest.Digest
	sum  hash.Hash
	err  error // io.EOF, or that the blob is wrong
}

// Read reads the next bytes.
func (v *verified) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n, err := v.from.Read(p)
	v.sum.Write(p[:n])
	if err == io.EOF {
		err = checkDigest("blob "+v.want.String(), v.want, v.sum)
		v.err = err
	}
	return n, err
}

// Judge returns the error for a take of Whole that has found something wrong with a blob before its
// end. What it has found counts only if the rest arrives, and the blob has its digest. Otherwise
// the error is the body's.
func Judge(body io.Reader, found error) error {
	if _, err := io.Copy(io.Discard, body); err != nil {
		return err
	}
	return found
}

// checkDigest returns io.EOF, or an error if what was hashed has another digest.
func checkDigest(what string, want digest.Digest, sum hash.Hash) error {
	if got := digest.NewDigest(want.Algorithm(), sum); got != want {
		return &chunk.InvalidError{What: what, Err: fmt.Errorf("its digest is %s", got)}
	}
	return io.EOF
}
