package hub

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const pemType = "PRIVATE KEY"

// loadKey reads the signing key, and makes it if there is none and nothing was
// signed yet: what another key has signed no node would believe.
func loadKey(path string, signed bool) (ed25519.PrivateKey, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && !signed {
		return makeKey(path)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the signing key %s is gone, with which this hub has signed its images: put it back, or begin with an empty root", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the signing key: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != pemType {
		return nil, fmt.Errorf("read the signing key: %s holds no %s in PEM form", path, pemType)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the signing key %s: %w", path, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read the signing key: %s is not an Ed25519 key", path)
	}
	return key, nil
}

// makeKey makes a key and keeps it: nodes will pin it, so it must not be lost to
// a crash after the first statement was signed.
func makeKey(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("make the signing key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make the signing key: %w", err)
	}
	if err := writeKey(path, pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der})); err != nil {
		return nil, fmt.Errorf("keep the signing key: %w", err)
	}
	return key, nil
}

func writeKey(path string, text []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "hub.key-") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // not there any more if all went well
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
