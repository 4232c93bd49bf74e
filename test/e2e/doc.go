// Package e2e tests packages on a real kernel, with the real containerd and real registries. Its
// tests need root and the build tag e2e. `make test` prepares their tools and images, and runs
// them.
//
// A missing tool or image fails a test; it never skips it.
package e2e
