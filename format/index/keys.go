package index

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// pemType is the type of a private key in PEM form (PKCS #8, RFC 5958).
const pemType = "PRIVATE KEY"

// ParsePrivateKeys parses 1 to MaxKeys Ed25519 keys in PEM form, as "openssl genpkey -algorithm
// ed25519" writes one.
func ParsePrivateKeys(text []byte) (keys []ed25519.PrivateKey, err error) {
	for len(bytes.TrimSpace(text)) > 0 {
		block, rest := pem.Decode(text)
		if block == nil || block.Type != pemType {
			return nil, fmt.Errorf("it is not a %s in PEM form", pemType)
		}
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		key, ok := parsed.(ed25519.PrivateKey)
		if !ok {
			return nil, errors.New("it has a key that is not an Ed25519 key")
		}
		keys, text = append(keys, key), rest
	}
	if len(keys) == 0 || len(keys) > MaxKeys {
		return nil, fmt.Errorf("it has %d keys, want 1 to %d", len(keys), MaxKeys)
	}
	return keys, nil
}

// EncodePrivateKeys returns keys in the form that ParsePrivateKeys parses.
func EncodePrivateKeys(keys []ed25519.PrivateKey) (text []byte, err error) {
	for _, key := range keys {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, err
		}
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der})...)
	}
	return text, nil
}
