// Package site runs a whole Lighter site on one host, with the real programs: a hub, a registry,
// and a machine with containerd and the node behind a network link. End-to-end tests and benchmarks
// use it.
//
// The test program runs in an enclosure (Enclosed): process, mount and network namespaces, and one
// directory. When the program ends, even by an interrupt or kill -9, the kernel removes the
// enclosure's processes, mounts and links. The host's own mounts and network stay as they are. A
// site needs no free port or address of the host, and several sites can run at the same time.
//
//	enclosure                                    10.64.0.0/30
//	┌────────────────────────────────┐  1 Gbit/s  ┌──────────────────────────────┐
//	│ hub :7070   registry :5000     │───link────▶│ machine: containerd, node    │
//	│ the test, skopeo, lighter add  │   (tbf)    │ containers                   │
//	└────────────────────────────────┘            └──────────────────────────────┘
//
// On the disk:
//
//	WORK/site-PID/            the enclosure's directory; inside, WORK is mounted on /run/work
//	  N/                      site N
//	    logs/NAME.log         the output of each process
//	    registry/             a tmpfs, so that no pull waits for the registry's disk
//	    hub/                  the hub's root
//	    machine/              containerd's root and state, the node's root; Wipe empties it
//
// The package needs root, and the tools that `test/setup tools` builds. It does not restart crashed
// processes: the next call that needs such a process fails.
package site
