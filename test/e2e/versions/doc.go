// Package versions promises that versions work together: hubs and nodes of this version with those
// of an earlier one, either way round. Each takes over what the other has left on disk, and a node
// also the mounts of running containers.
package versions
