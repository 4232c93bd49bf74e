// Package system promises that a whole site does what the README says: a hub, a
// registry, and a machine behind a link with the real containerd and a node.
package system
