// Package bounds promises that nothing grows: not the daemon's memory with what
// is mounted, not the requests with those who read the same, and not what is left
// behind with what came and went. With LIGHTER_SOAK set each test is as long as
// the promise; without, it is a sample of it.
package bounds
