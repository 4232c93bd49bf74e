package attached

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"lighter/format/index"
)

// payloadType is what an envelope of Contents says of its payload.
const payloadType = "application/vnd.lighter.contents.v2+json"

// envelope is a DSSE envelope (secure-systems-lab/dsse, version 1.0.2).
type envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     []byte      `json:"payload"` // in base64
	Signatures  []signature `json:"signatures"`
}

type signature struct {
	KeyID string `json:"keyid,omitempty"` // the public key, as index.FormatKey has it: a hint
	Sig   []byte `json:"sig"`             // Ed25519, of preAuth, in base64
}

// preAuth returns the bytes that are signed (PAE in the specification).
func preAuth(payload []byte) []byte {
	b := fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(payloadType), payloadType, len(payload))
	return append(b, payload...)
}

// Seal returns the envelope of contents, signed with 1 to index.MaxKeys keys. The error says what
// is wrong with the contents.
func Seal(c *Contents, keys []ed25519.PrivateKey) ([]byte, error) {
	err := c.check()
	var b []byte
	if err == nil {
		e := envelope{PayloadType: payloadType}
		if e.Payload, err = json.Marshal(c); err == nil {
			for _, key := range keys {
				e.Signatures = append(e.Signatures, signature{index.FormatKey(key.Public().(ed25519.PublicKey)),
					ed25519.Sign(key, preAuth(e.Payload))})
			}
			b, err = json.Marshal(e)
		}
	}
	if err == nil && len(b) > MaxEnvelope {
		err = fmt.Errorf("it has %d bytes: want at most %d", len(b), MaxEnvelope)
	}
	if err != nil {
		return nil, fmt.Errorf("sign an attached index: %w", err)
	}
	return b, nil
}

// ErrNotSigned says that none of the known keys has signed an envelope.
var ErrNotSigned = errors.New("no known key has signed it")

// Open returns the contents of an untrusted envelope, and the key among keys that has signed them.
// The error wraps ErrNotSigned, or an *index.NewerFormatError, or says what is wrong.
func Open(b []byte, keys []ed25519.PublicKey) (c *Contents, by ed25519.PublicKey, err error) {
	if c, by, err = open(b, keys); err != nil {
		return nil, nil, fmt.Errorf("open an attached index: %w", err)
	}
	return c, by, nil
}

func open(b []byte, keys []ed25519.PublicKey) (c *Contents, by ed25519.PublicKey, err error) {
	e, err := parse(b)
	if err != nil {
		return nil, nil, err
	}
	for _, key := range keys {
		for _, s := range e.Signatures {
			if len(key) == ed25519.PublicKeySize && ed25519.Verify(key, preAuth(e.Payload), s.Sig) {
				by = key
			}
		}
	}
	if by == nil {
		return nil, nil, ErrNotSigned
	}
	c = &Contents{}
	if err := json.Unmarshal(e.Payload, c); err != nil {
		return nil, nil, err
	}
	return c, by, c.check()
}

func parse(b []byte) (e envelope, err error) {
	if len(b) > MaxEnvelope {
		return e, fmt.Errorf("it has %d bytes: want at most %d", len(b), MaxEnvelope)
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return e, err
	}
	if e.PayloadType != payloadType {
		return e, fmt.Errorf("its payload is of type %q, want %s", e.PayloadType, payloadType)
	}
	if len(e.Signatures) > index.MaxKeys {
		return e, fmt.Errorf("it has %d signatures: want at most %d", len(e.Signatures), index.MaxKeys)
	}
	return e, nil
}

// HaveSigned reports whether some of the keys are among the signers of an envelope, and whether all
// are.
func HaveSigned(signers []ed25519.PublicKey, keys []ed25519.PrivateKey) (some, all bool) {
	all = true
	for _, key := range keys {
		isIt := func(one ed25519.PublicKey) bool { return one.Equal(key.Public()) }
		if slices.ContainsFunc(signers, isIt) {
			some = true
		} else {
			all = false
		}
	}
	return some, all
}

// Signers returns the keys that an untrusted envelope says to be signed with, whose signatures are
// right. They need not be trusted.
func Signers(b []byte) (keys []ed25519.PublicKey) {
	e, err := parse(b)
	if err != nil {
		return nil
	}
	for _, s := range e.Signatures {
		if key, err := index.ParseKey(s.KeyID); err == nil && ed25519.Verify(key, preAuth(e.Payload), s.Sig) {
			keys = append(keys, key)
		}
	}
	return keys
}
