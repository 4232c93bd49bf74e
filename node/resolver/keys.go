package resolver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"lighter/durable"
	"lighter/format/index"
)

// KeySource is a hub from which keys can be learned.
type KeySource interface {
	// Keys returns the hub's public keys, at least one. It fails for a hub that another user runs.
	Keys(ctx context.Context) ([]ed25519.PublicKey, error)
	// Learnable returns an error if no key may be learned from this hub.
	Learnable() error
}

// Keys are the public keys whose statements a node believes: the hubs', which are pinned, and its
// own, if it makes trees itself. Usually the hubs' are configured. If none
// is configured, they are learned when they are first needed, and pinned from then on. They are
// learned only from a node's single hub, and only if this hub is on the same machine and runs as
// root or as the node's own user.
type Keys struct {
	source KeySource         // nil: the node has no hubs
	path   string            // of the file for learned keys
	own    ed25519.PublicKey // see SetOwn; nil: none

	mu   sync.Mutex // guards keys
	keys []ed25519.PublicKey
}

// pinIt is the remedy if no key can be learned.
const pinIt = "pin the hub's key with hub_keys or --hub-key (the hub prints it when it starts)"

// NewKeys pins the configured keys, in the form of index.FormatKey. If there are none, it pins the
// keys that an earlier daemon learned, or leaves it to Get to learn them.
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

// OwnKeys returns the keys of a node without hubs: only its own.
func OwnKeys(key ed25519.PublicKey) *Keys { return &Keys{own: key} }

// SetOwn adds the key with which this node signs statements about trees that it makes itself. It is
// called before the keys are used.
func (k *Keys) SetOwn(key ed25519.PublicKey) { k.own = key }

// isOwn reports whether a statement is the node's own.
func (k *Keys) isOwn(s *index.Statement) bool { return k.own != nil && s != nil && s.SignedBy(k.own) }

// Get returns the keys whose statements are believed. It learns the hub's if none is pinned.
func (k *Keys) Get(ctx context.Context) ([]ed25519.PublicKey, error) {
	if len(k.pinned()) == 0 && k.source != nil {
		if err := k.learn(ctx); err != nil {
			return nil, err
		}
	}
	return k.believed(), nil
}

// of returns the keys that may have signed a new statement: the node's own, or the hubs'.
func (k *Keys) of(ctx context.Context, own bool) ([]ed25519.PublicKey, error) {
	if own {
		return []ed25519.PublicKey{k.own}, nil
	}
	_, err := k.Get(ctx)
	return k.pinned(), err
}

// learn pins the hub's keys.
func (k *Keys) learn(ctx context.Context) error {
	keys, err := k.source.Keys(ctx) // without the lock, so two callers may ask at the same time
	if err != nil {
		return fmt.Errorf("learn the hub's key: %w; or %s", err, pinIt)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.keys) > 0 {
		return nil
	}
	var text []byte
	for _, key := range keys {
		text = append(text, index.FormatKey(key)+"\n"...)
	}
	if err := durable.Replace(k.path, text); err != nil {
		return fmt.Errorf("pin the hub's key: %w", err)
	}
	k.keys = keys
	return nil
}

// believed returns the pinned keys, and the node's own.
func (k *Keys) believed() []ed25519.PublicKey {
	keys := slices.Clone(k.pinned())
	if k.own != nil {
		keys = append(keys, k.own)
	}
	return keys
}

// pinned returns the pinned keys, which may be none.
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
