// Package converters tests that a node without a hub starts images lazily that other programs have
// made: stargz' converter, BuildKit, Podman, Skopeo and SOCI's tool. Each has the files that
// containerd's overlayfs unpacks of the same image, entry by entry.
//
// Podman and Skopeo are Debian's: their tests have the build tag e2e. BuildKit's has the tag
// runtimes, and needs the programs of `test/setup buildkit`. Those of stargz and SOCI have the tag
// peers, and need `test/setup peers`.
package converters
