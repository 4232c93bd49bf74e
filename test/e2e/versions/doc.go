// Package versions tests a hub of an earlier version with a node of this version, and a hub of this
// version with a node of the earlier version. Then this version replaces the earlier one. It uses
// the state that the earlier version has left on the disk, and a node also takes over the mounts of
// running containers.
package versions
