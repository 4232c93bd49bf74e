// Package compat tests that old formats stay readable, and that hubs and nodes of today work with
// nodes and hubs of earlier versions. Its directory testdata has examples: what earlier versions
// have written to disk and to the wire. Package test/testkit/example says how they are kept.
package compat
