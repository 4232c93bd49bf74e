// Package network tests failures of the network. Containers wait without an error for a hub that
// does not answer, a mirror replaces the hub, and hanging requests for one image do not delay
// readers of another image. The hub, the node, containerd and the mirror's web server are real
// programs.
package network
