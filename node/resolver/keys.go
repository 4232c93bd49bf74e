package resolver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"lighter/durable"
	"lighter/format/index"
)

// KeySource is where a key can be learned: a hub.
type KeySource interface {
	// Keys asks for the hub's public keys, of which there is one at least. It refuses those
	// of a hub that another user runs.
	Keys(ctx context.Context) ([]ed25519.PublicKey, error)
	// Learnable says why no key is to be learned there, or nil.
	Learnable() error
}

// Keys are the public keys whose statements a node believes. They are
// configured, or learned when they are first needed and pinned from then on: from the
// node's only hub, if it is on this machine and root's or of the node's own user.
type Keys struct {
	source KeySource
	path   string // where learned keys are kept

	mu   sync.Mutex // guards keys
	keys []ed25519.PublicKey
}

// pinIt is what to do where no key can be learned.
const pinIt = "pin the hub's key with hub_keys or --hub-key (the hub prints it when it starts)"

// NewKeys pins the configured keys, in the form of index.FormatKey. With none,
// those that a former run learned are taken, or the hub will be asked.
func NewKeys(root string, configured []string, source KeySource) (*Keys, error) {
	k := &Keys{source: source, path: filepath.Join(root, "hub.keys")}
	if len(configured) == 0 {
		b, err := os.ReadFile(k.path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read the hub's pinned keys: %w", err)
		}
		configured = strings.Fields(string(b))
	}
	for _, s := range configured {
		key, err := index.ParseKey(s)
		if err != nil {
			return nil, err
		}
		k.keys = append(k.keys, key)
	}
	if len(k.keys) > 0 {
		return k, nil
	}
	if err := source.Learnable(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, pinIt)
	}
	return k, nil
}

// Get returns the pinned keys, learning them if there are none.
func (k *Keys) Get(ctx context.Context) ([]ed25519.PublicKey, error) {
	if keys := k.pinned(); len(keys) > 0 {
		return keys, nil
	}
	keys, err := k.source.Keys(ctx) // no lock across the network: two may ask
	if err != nil {
		return nil, fmt.Errorf("learn the hub's key: %w; or %s", err, pinIt)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.keys) > 0 {
		return k.keys, nil
	}
	var text []byte
	for _, key := range keys {
		text = append(text, index.FormatKey(key)+"\n"...)
	}
	if err := durable.Replace(k.path, text); err != nil {
		return nil, fmt.Errorf("pin the hub's key: %w", err)
	}
	k.keys = keys
	return k.keys, nil
}

// pinned returns the keys that are pinned already.
func (k *Keys) pinned() []ed25519.PublicKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys
}

// List returns the pinned keys as text.
func (k *Keys) List() []string {
	var list []string
	for _, key := range k.pinned() {
		list = append(list, index.FormatKey(key))
	}
	return list
}
