// Package hubs tests that containers read on and images stay usable while the hub changes, with
// real nodes, containerd, PostgreSQL, S3 and nginx. Images are removed, packs are rewritten, other
// registries go away, one process of several is killed, and the hub is copied. Other tests are
// about a node of another domain, and about one that comes back after its image was collected: its
// reads of missing chunks fail.
package hubs
