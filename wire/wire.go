// Package wire holds what a hub and its clients agree on: the paths of the HTTP API, its
// messages, the names of images, and limits. docs/wire.md describes them.
//
// It is pure: it sends nothing and serves nothing. The clients are the packages client, origin
// and mirror; the servers are hub/serve and hub/admin.
package wire

// Headers.
const (
	// CopyHeader marks requests that copy or renew objects, as a mirror does, or a node once a
	// day. The hub does not count them as starts.
	CopyHeader = "Lighter-Copy"
	// MissingHeader marks a 404 that comes from the hub itself. A 404 without it may come from
	// a proxy that cannot reach the hub.
	MissingHeader = "Lighter-Not-Found"
)

// MaxAbove bounds Chain.Above.
const MaxAbove = 1000
