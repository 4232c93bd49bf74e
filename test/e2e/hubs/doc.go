// Package hubs tests what a hub promises to nodes over time, with real nodes, containerd,
// PostgreSQL, S3 and nginx: removed images stay served while nodes have them, packs are rewritten
// while containers read, other registries go away, one process of several is killed, and a hub is
// copied while it runs.
package hubs
