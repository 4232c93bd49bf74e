// Package site promises a whole Lighter site on one machine, made of the real
// programs: a hub, a registry, and a machine behind a link of its own on which
// containerd and the node run. It is for end-to-end tests and for benchmarks.
//
// What uses it runs in an enclosure (Enclosed): its own process, mount and
// network namespaces, and one directory. Whatever way the program ends, by a
// failed test, an interrupt or kill -9, the kernel ends all processes, mounts
// and links with it, and the host never sees them. So a site needs no free
// port or address, and many can run beside each other.
//
//	enclosure                                    10.64.0.0/30
//	┌────────────────────────────────┐  1 Gbit/s  ┌──────────────────────────────┐
//	│ hub :7070   registry :5000     │───link────▶│ machine: containerd, node    │
//	│ the test, skopeo, lighter add  │   (tbf)    │ containers                   │
//	└────────────────────────────────┘            └──────────────────────────────┘
//
// On the disk:
//
//	WORK/site-PID/            the enclosure; TMPDIR of all that runs in it, where WORK is /run/work
//	  N/                      site N
//	    logs/NAME.log         what each process said
//	    registry/             a tmpfs: the baseline must not wait for a disk
//	    hub/                  the hub's root
//	    machine/              containerd's root and state, the node's root: Wipe empties it
//
// It needs root, and the tools that `test/setup tools` builds. It does not
// restart what crashes: a process that ends early fails the next call.
package site
