// Package peers tests the snapshotters that the benchmark compares with Lighter: they must be lazy,
// and use the settings of the benchmark. `make peers` and `make bench` run these tests; `make test`
// does not. They need the programs that `test/setup peers` builds, and the build tag peers.
package peers
