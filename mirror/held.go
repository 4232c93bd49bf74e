package mirror

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"lighter/format/chunk"
	"lighter/wire"
)

// holderFile has the mirror's ID as a holder. Only its owner can read it, so that a web server of
// another user does not serve it.
const holderFile = ".holder"

// reportHeld reports to the hub all trees in the directory, also those that earlier runs copied.
func (m *Mirror) reportHeld(ctx context.Context) error {
	trees, err := m.files.trees(m.client.Domain())
	if err != nil {
		return err
	}
	if len(trees) > wire.MaxHeld {
		return fmt.Errorf("the mirror has %d trees, a report can have at most %d", len(trees), wire.MaxHeld)
	}
	id, err := m.files.holder()
	if err != nil {
		return err
	}
	name, _ := os.Hostname() // it is for users only
	_, err = m.client.SendHeld(ctx, wire.Held{Holder: id, Kind: wire.HolderMirror, Name: name, Trees: trees})
	return err
}

// trees lists the trees of the directory.
func (f files) trees(domain string) (trees []chunk.ID, err error) {
	dir := strings.TrimSuffix(fileOf(wire.IndexPath(domain, chunk.ID{})), "/"+chunk.ID{}.String())
	entries, err := fs.ReadDir(f.root.FS(), dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the mirror: %w", err)
	}
	for _, entry := range entries {
		if tree, err := chunk.ParseID(entry.Name()); err == nil {
			trees = append(trees, tree)
		}
	}
	return trees, nil
}

// holder returns the mirror's ID, which is made if there is none.
func (f files) holder() (string, error) {
	id, err := f.root.ReadFile(holderFile)
	if err == nil && wire.IsHolderID(string(id)) {
		return string(id), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the mirror: %w", err)
	}
	file, err := f.create()
	if err != nil {
		return "", err
	}
	defer file.discard()
	text := rand.Text()
	if _, err := file.WriteString(text); err != nil {
		return "", fmt.Errorf("write to the mirror: %w", err)
	}
	return text, file.publishAs(holderFile, 0o600)
}
