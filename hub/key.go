package hub

import (
	"context"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/hub/rootdir"
)

// signingKeys are the keys that a hub signs with, the oldest first. There are several only while a
// new key replaces another.
type signingKeys []ed25519.PrivateKey

// public returns the public keys, in the same order.
func (k signingKeys) public() (all []ed25519.PublicKey) {
	for _, key := range k {
		all = append(all, key.Public().(ed25519.PublicKey))
	}
	return all
}

// text returns the public keys in the form of index.FormatKey.
func (k signingKeys) text() (all []string) {
	for _, key := range k.public() {
		all = append(all, index.FormatKey(key))
	}
	return all
}

// derive returns 32 secret bytes for a purpose. All processes with the same oldest key get the same
// bytes.
func (k signingKeys) derive(purpose string) []byte {
	secret, err := hkdf.Key(sha256.New, k[0].Seed(), nil, "lighter: "+purpose, 32)
	if err != nil {
		panic(err) // only for lengths that SHA-256 does not allow
	}
	return secret
}

// openKeys reads the signing keys, and signs the statements of the catalog with them. It makes a
// key only for a new hub: nodes refuse statements that none of their pinned keys has signed.
func openKeys(ctx context.Context, c *catalog.Catalog, path string) (signingKeys, error) {
	keys, err := readKeys(path)
	isMissing := errors.Is(err, fs.ErrNotExist)
	if isMissing {
		switch known, err := c.HasKeys(ctx); {
		case err != nil:
			return nil, err
		case known:
			return nil, fmt.Errorf("the signing key %s of this hub is missing: restore it from a backup, or copy it "+
				"from another process of the hub; if there is no copy, make another key (lighter hub key add), "+
				"let the hub use it (lighter hub key use), and pin it on all nodes", path)
		}
		keys = signingKeys{makeKey()}
		err = writeKeys(path, keys)
	}
	if err != nil {
		return nil, err
	}
	err = c.Resign(ctx, keys)
	if errors.Is(err, catalog.ErrOtherKeys) {
		if isMissing { // a process that has started at the same time has made a key, too
			err = errors.Join(err, os.Remove(path))
		}
		err = fmt.Errorf("%w than those in %s: restore that file from a backup, or copy it from another process "+
			"of the hub; if there is no copy, let the hub use these keys (lighter hub key use), "+
			"and pin them on all nodes", err, path)
	}
	return keys, err
}

// UseKeys makes a hub accept, from its next start on, the keys that a domain's directory has now,
// although other keys have signed before.
func UseKeys(ctx context.Context, c Config, domain string) (err error) {
	of, err := c.ofDomain(domain)
	if err != nil {
		return err
	}
	if _, err := readKeys(rootdir.Key(of.Root)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: restore the file, or make a key (lighter hub key add)", err)
	} else if err != nil {
		return err
	}
	opened, err := catalog.AttachAt(ctx, of.catalogPlace(domain))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	return opened.ForgetKeys(ctx)
}

// readKeys reads the signing keys. The error is fs.ErrNotExist if there is no file.
func readKeys(path string) (keys signingKeys, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the signing key: %w", err)
	}
	if keys, err = index.ParsePrivateKeys(text); err != nil {
		return nil, fmt.Errorf("read the signing key %s: %w", path, err)
	}
	return keys, nil
}

func makeKey() ed25519.PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails
	return ed25519.NewKeyFromSeed(seed)
}

// writeKeys replaces the key file durably: nodes will pin the keys.
func writeKeys(path string, keys signingKeys) error {
	text, err := index.EncodePrivateKeys(keys)
	if err != nil {
		return fmt.Errorf("write the signing key: %w", err)
	}
	if err := rootdir.WriteKey(path, text); err != nil {
		return fmt.Errorf("write the signing key %s: %w", path, err)
	}
	return nil
}

// Keys returns the public keys of the domain in a directory, the oldest first, in the form of
// index.FormatKey.
func Keys(root string) ([]string, error) {
	keys, err := readKeys(rootdir.Key(root))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: the hub makes it at its first start; "+
			"name the hub's directory with --root or --config", err)
	}
	return keys.text(), err
}

// AddKey makes another signing key for the domain in a directory and returns its public half. A
// running hub uses the new key after a restart.
func AddKey(root string) (string, error) {
	keys, err := readKeys(rootdir.Key(root))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if len(keys) == index.MaxKeys {
		return "", fmt.Errorf("the hub has %d keys, which is the maximum: remove one first", len(keys))
	}
	keys = append(keys, makeKey())
	return keys.text()[len(keys)-1], writeKeys(rootdir.Key(root), keys)
}

// RemoveKey removes the signing key with that public half from the domain in a directory, unless it
// is the only one. A running hub goes on to use the removed key until a restart.
func RemoveKey(root, public string) error {
	keys, err := readKeys(rootdir.Key(root))
	if err != nil {
		return err
	}
	at := slices.Index(keys.text(), public)
	switch {
	case at < 0:
		return fmt.Errorf("the hub in %s has no key %s", root, public)
	case len(keys) == 1:
		return fmt.Errorf("%s is the only key of the hub in %s: add another first", public, root)
	}
	return writeKeys(rootdir.Key(root), slices.Delete(keys, at, at+1))
}
