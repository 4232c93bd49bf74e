// Package network tests failures of the network. Containers wait for an unreachable hub without an
// error, a mirror takes over, and hanging requests for one image do not delay another. Hubs, nodes,
// containers and the mirror's web server are real.
package network
