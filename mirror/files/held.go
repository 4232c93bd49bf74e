package files

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"lighter/format/chunk"
	"lighter/wire"
)

// holderFile has the mirror's ID as a holder. Only its owner can read it, so that a web server of
// another user does not serve it.
const holderFile = ".holder"

// Trees lists the trees of the directory.
func (f Dir) Trees(domain string) (trees []chunk.ID, err error) {
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

// Holder returns the mirror's ID, which is made if there is none.
func (f Dir) Holder() (string, error) {
	id, err := f.root.ReadFile(holderFile)
	if err == nil && wire.IsHolderID(string(id)) {
		return string(id), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the mirror: %w", err)
	}
	file, err := f.Create()
	if err != nil {
		return "", err
	}
	defer file.Discard()
	text := rand.Text()
	if _, err := file.WriteString(text); err != nil {
		return "", fmt.Errorf("write to the mirror: %w", err)
	}
	return text, file.publishAs(holderFile, 0o600)
}
