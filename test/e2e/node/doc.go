// Package node tests the node and its commands against their help texts, on a real kernel. Whenever
// a node is killed, the next node or a command must be able to clean up.
package node
