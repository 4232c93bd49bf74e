// Package peers tests the other snapshotters with which the benchmark compares Lighter: stargz,
// SOCI and nydus. Each must be lazy: it fetches only the part of an image that a container reads.
// The tests switch off background fetching, because it fetches the whole image. The benchmark
// leaves it on, except for nydus-nopf. One test compares the indexes of layers that format/soci
// makes with SOCI's. Others let SOCI's snapshotter run what lighter export makes, and Lighter's
// node what SOCI's converter makes.
//
// The tests need the build tag peers and the programs that `test/setup peers` builds; the test of
// nydus needs the tag nydus, too, and `test/setup nydus`. `make peers`, `make bench` and `make
// nydus` run them. `make test` does not.
package peers
