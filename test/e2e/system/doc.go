// Package system tests a whole site as the README describes it: a hub, a registry, and a machine
// with a node and the real containerd behind a network link.
package system
