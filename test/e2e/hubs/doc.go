// Package hubs tests that containers read on, and that images stay usable, while a hub changes:
// images are removed, packs are rewritten, another registry goes away, one of the hub's two
// processes is killed, and the hub is copied. Two more tests are about nodes: one node uses another
// domain than the default domain; the other node returns after its image was removed and collected,
// and its reads of missing chunks fail.
//
// The nodes, containerd, PostgreSQL, the S3 server and nginx are real programs.
package hubs
