// Package podman tests the additional image store of a node with Debian's Podman, Buildah and
// Skopeo, and with the newest version of their library, on a real kernel.
package podman
