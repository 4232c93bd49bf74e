// Package soak tests that containers read on without errors, and get the right bytes, while the
// programs around them fail: the node's daemon is killed and replaced, its keeper is killed,
// containerd is restarted, and hub, disk and memory fail. Further tests are about a daemon that is
// too old for the kept state, and about the systemd units.
//
// The tests have a short form, and a long form for `make soak`.
package soak
