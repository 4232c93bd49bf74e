// Package e2e tests packages on a real kernel, with the real containerd, skopeo and erofs-utils.
// Its tests need root and the build tag e2e. `make test` prepares their tools and images, and runs
// them.
//
// If a tool or an image is missing, the test that needs it fails. It is not skipped.
package e2e
