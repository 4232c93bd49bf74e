// Package node promises that the node and its commands do what their help says,
// and that a node which is killed leaves nothing that the next one, or a
// command, cannot put in order.
package node
