package chain

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"lighter/format/index"
	"lighter/node/state"
)

// KeySource is where a key can be learned: a hub.
type KeySource interface {
	// Keys asks for the hub's public keys, of which there is one at least.
	Keys(ctx context.Context) ([]ed25519.PublicKey, error)
	// Loopback tells whether the hub is on this machine.
	Loopback() bool
	// URL names the hub, for errors.
	URL() string
}

// Keys are the public keys whose statements a node believes. They are
// configured, or, from a hub on this machine alone, learned when they are first
// needed and pinned from then on.
type Keys struct {
	source KeySource
	path   string // where learned keys are kept

	mu   sync.Mutex // guards keys
	keys []ed25519.PublicKey
}

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
	if len(k.keys) == 0 && !source.Loopback() {
		return nil, fmt.Errorf("hub %s is not on this machine: pin its key with --hub-key (the hub prints it when it starts)", source.URL())
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
		return nil, fmt.Errorf("learn the hub's key: %w", err)
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
	if err := state.Replace(k.path, text); err != nil {
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
