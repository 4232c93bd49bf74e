// Package versions tests hubs and nodes of this version together with those of an earlier version,
// in both directions. This version takes over the state that the earlier one has left on disk, and
// a node also takes over the mounts of running containers.
package versions
