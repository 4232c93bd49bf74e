package attached

import (
	"crypto/ed25519"
	"fmt"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Artifact is an untrusted artifact that may have the index of an image.
type Artifact struct {
	Manifest []byte        // the artifact's own manifest
	Subject  digest.Digest // what it has to refer to: the image's manifest, or nothing if it was found by a tag
	Image    digest.Digest // the image's manifest
	Chain    string        // the chainID of the image's layers
	// Envelope reads the envelope, MaxEnvelope bytes at most. It is not called if the manifest has
	// the envelope.
	Envelope func(d v1.Descriptor) ([]byte, error)
}

// A RefusedError says why an artifact is not an index of an image that is believed.
type RefusedError struct{ error }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.error }

// Open returns the artifact's contents, and the key that has signed them: one of those that
// believed returns for the envelope. The error is a *RefusedError, or that of Envelope.
func (a *Artifact) Open(believed func(envelope []byte) []ed25519.PublicKey) (*Contents, ed25519.PublicKey, error) {
	d, subject, err := envelopeOf(a.Manifest)
	if err == nil && subject != a.Subject {
		err = fmt.Errorf("it refers to %q", subject)
	}
	if err != nil {
		return nil, nil, &RefusedError{err}
	}
	b := d.Data
	if len(b) == 0 {
		if b, err = a.Envelope(d); err != nil {
			return nil, nil, err
		}
	}
	c, by, err := Open(b, believed(b))
	if err == nil && (c.Manifest != a.Image || c.Chain != a.Chain) {
		err = fmt.Errorf("it is the index of manifest %s", c.Manifest)
	}
	if err != nil {
		return nil, nil, &RefusedError{err}
	}
	return c, by, nil
}
