// Package peers promises that what the benchmark compares Lighter with is what
// it is taken for: the peer's own code, lazily, with the settings that were
// asked for. `make peers` runs its tests, so `make bench` does, and `make test`
// does not: they need what `test/setup peers` builds, and the build tag peers.
package peers
