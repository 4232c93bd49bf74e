package trees

import (
	"path/filepath"

	"lighter/format/chunk"
)

// paths has all paths of a store; the package's doc shows them.
type paths struct {
	root string // the node's root directory
}

// Dir returns the directory of the trees below root.
func Dir(root string) string { return filepath.Join(root, "trees") }

func (p paths) dir(tree chunk.ID) string       { return filepath.Join(Dir(p.root), tree.String()) }
func (p paths) mapFile(tree chunk.ID) string   { return filepath.Join(p.dir(tree), "map") }
func (p paths) locations(tree chunk.ID) string { return filepath.Join(p.dir(tree), "locations") }

// removing returns the path to which a tree's index is moved before it is removed.
func (p paths) removing(tree chunk.ID) string {
	return filepath.Join(Dir(p.root), oldPrefix+tree.String())
}

// Metadata returns the path of a tree's metadata image.
func (p paths) Metadata(tree chunk.ID) string { return filepath.Join(p.dir(tree), "metadata") }

// LocalMetadata returns the second path of a tree's metadata image. Mounts of the local device use
// this path.
func (p paths) LocalMetadata(tree chunk.ID) string {
	return filepath.Join(p.localDir(tree), "metadata")
}

// LocalDevice returns the path of a tree's local device.
func (p paths) LocalDevice(tree chunk.ID) string { return filepath.Join(p.localDir(tree), "device") }

func (p paths) localDir(tree chunk.ID) string { return filepath.Join(p.dir(tree), localDir) }

// IsTree reports whether the last element of a path is a tree ID.
func IsTree(path string) bool {
	_, err := chunk.ParseID(filepath.Base(path))
	return err == nil
}

// IsMetadata reports whether path, the source of an EROFS mount, is a metadata image of a store. It
// looks only at the names of the directories, so the store may be that of another node.
func IsMetadata(path string) bool {
	dir := filepath.Dir(path)
	if IsLocalMetadata(path) {
		dir = filepath.Dir(dir)
	}
	return IsTree(dir) && filepath.Dir(dir) == Dir(filepath.Dir(filepath.Dir(dir)))
}

// IsLocalMetadata reports whether path, a metadata image, is in the directory of a local device
// (see LocalMetadata).
func IsLocalMetadata(path string) bool { return filepath.Base(filepath.Dir(path)) == localDir }
