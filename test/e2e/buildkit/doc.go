// Package buildkit tests builds with the real buildkitd and buildctl on a site. The tests need the
// build tag runtimes and the programs that `test/setup buildkit` builds; `make runtimes` runs them.
package buildkit
