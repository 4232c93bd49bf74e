// Package network promises that the network may go: containers wait for a hub that
// is gone and notice nothing else, a mirror takes over, and what is stuck on one
// image does not delay another. Hubs, nodes, containers and the mirror's web server
// are real.
package network
