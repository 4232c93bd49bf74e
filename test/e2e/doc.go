// Package e2e promises that the parts do what they say on a real kernel, with
// the real containerd and real registries. Its tests need root and the build
// tag e2e; `make test` runs them, with all that they need in place.
//
// A missing tool or image is a failure, never a silent skip.
package e2e
