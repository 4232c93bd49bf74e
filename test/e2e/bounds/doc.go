// Package bounds tests that resources are bounded: the daemon's memory with many mounts, requests
// with many readers of the same image, and leftovers after many pulls and removals. With
// LIGHTER_SOAK set, the tests run in their long form.
package bounds
