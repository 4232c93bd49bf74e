// Package soak holds the tests of what must not break while a node runs for long:
// its daemon dies, is replaced, and everything around it is restarted, under
// containers that check each byte that they read.
package soak
