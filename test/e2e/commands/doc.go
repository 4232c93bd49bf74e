// Package commands tests the hub and its commands against their help texts, with skopeo, podman, a
// shell and a terminal.
package commands
