// Package containers tests `lighter run`, `bundle` and `unbundle` with the real runc and crun, a
// hub and nodes, on a real kernel. After each test, no mount, process or file of a container is
// left.
package containers
