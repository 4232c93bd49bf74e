// Package podman tests the additional image store of a node with Debian's Podman, Buildah and
// Skopeo, on a real kernel.
package podman
