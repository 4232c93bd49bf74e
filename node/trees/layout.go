package trees

import (
	"path/filepath"

	"lighter/format/chunk"
)

// This file has all paths of the store; the package's doc shows them.

// Dir returns the directory below root that has the trees.
func Dir(root string) string { return filepath.Join(root, "trees") }

func (s *Store) dir(tree chunk.ID) string       { return filepath.Join(Dir(s.root), tree.String()) }
func (s *Store) mapFile(tree chunk.ID) string   { return filepath.Join(s.dir(tree), "map") }
func (s *Store) locations(tree chunk.ID) string { return filepath.Join(s.dir(tree), "locations") }

// removing returns where a tree's index is moved before it is removed.
func (s *Store) removing(tree chunk.ID) string {
	return filepath.Join(Dir(s.root), oldPrefix+tree.String())
}

// Metadata returns the path of a tree's metadata image.
func (s *Store) Metadata(tree chunk.ID) string { return filepath.Join(s.dir(tree), "metadata") }

// LocalMetadata returns the other name of the metadata image, used with the local device.
func (s *Store) LocalMetadata(tree chunk.ID) string {
	return filepath.Join(s.localDir(tree), "metadata")
}

// LocalDevice returns the path of a tree's local device.
func (s *Store) LocalDevice(tree chunk.ID) string { return filepath.Join(s.localDir(tree), "device") }

func (s *Store) localDir(tree chunk.ID) string { return filepath.Join(s.dir(tree), localDir) }

// IsTree reports whether the last element of a path is a tree ID.
func IsTree(path string) bool {
	_, err := chunk.ParseID(filepath.Base(path))
	return err == nil
}

// IsMetadata reports whether a path is that of a metadata image in any store.
func IsMetadata(path string) bool {
	dir := filepath.Dir(path)
	if IsLocalMetadata(path) {
		dir = filepath.Dir(dir)
	}
	return IsTree(dir) && filepath.Dir(dir) == Dir(filepath.Dir(filepath.Dir(dir)))
}

// IsLocalMetadata reports whether a path is what LocalMetadata returns for some tree.
func IsLocalMetadata(path string) bool { return filepath.Base(filepath.Dir(path)) == localDir }
