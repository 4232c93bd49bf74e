// Package docker tests Docker on a node: dockerd uses the machine's containerd and its snapshotter
// lighter. The tests speak Docker's API, as the docker command does.
//
// The tests need the build tag runtimes and the programs that `test/setup docker` builds. `make
// runtimes` runs them. `make test` does not.
package docker
