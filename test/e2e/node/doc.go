// Package node tests the node and its commands against their help texts. After a kill, the next
// node or a command must be able to clean up.
package node
