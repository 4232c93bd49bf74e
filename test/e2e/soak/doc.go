// Package soak contains long-running tests. The node's daemon is killed and replaced, and the
// programs around it are restarted, while containers verify each byte that they read.
package soak
