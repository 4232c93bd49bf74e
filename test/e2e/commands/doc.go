// Package commands tests that the hub and its commands do what their help texts say. The tests also
// use skopeo and podman, and run commands on a terminal.
package commands
