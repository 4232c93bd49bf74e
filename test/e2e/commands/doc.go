// Package commands promises that the hub and its commands do what their help
// says, with the programs that people use: skopeo, podman, a shell, a terminal.
package commands
