// Package hubs tests that containers read on, and that images stay usable, while images are
// removed, packs are rewritten, another registry or PostgreSQL is away, one of the hub's two
// processes is killed, and the hub is copied. While the bucket is away, reads wait.
//
// Two more tests are about a node. In one it uses a domain that is not the default one. In the
// other it comes back after its image was removed and collected: its reads of chunks that it has
// not cached fail.
//
// The nodes, containerd, PostgreSQL, the S3 server and nginx are real programs.
package hubs
