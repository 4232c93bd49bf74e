// Package compat tests that old formats stay readable, and that hubs and nodes one version apart
// work together. Its directory testdata has examples: what earlier versions have written to disk
// and to the wire. Package example says how they are kept.
package compat
