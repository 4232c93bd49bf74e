// Package versions tests hubs and nodes of this version together with those of an earlier version,
// in both directions. Each version takes over the other's state on disk, and a node also takes over
// the mounts of running containers.
package versions
