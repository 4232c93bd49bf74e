// Package bounds tests that resources are bounded: the daemon's memory with many mounts, requests
// to the hub with many readers of the same image, and what is left after many pulls and removals of
// images. With LIGHTER_SOAK set, the tests run in their long form.
package bounds
