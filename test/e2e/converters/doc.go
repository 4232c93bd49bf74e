// Package converters tests that a node without a hub starts images lazily that other programs have
// made: stargz' converter, BuildKit, Podman and SOCI's tool. Each has the files that containerd's
// overlayfs unpacks of the same image, entry by entry. So has an image that `lighter export` makes
// and the snapshotter of stargz or SOCI runs.
//
// Podman is Debian's, and the newest one's library: the test has the build tag e2e. BuildKit's has
// the tag runtimes, and needs the programs of `test/setup buildkit`. Those of stargz and SOCI have
// the tag peers, and need `test/setup peers`; `make peers` runs them.
package converters
