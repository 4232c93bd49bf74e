// Package system tests a whole site against the README: a hub, a registry, and a machine behind a
// link with the real containerd and a node.
package system
