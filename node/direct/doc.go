// Package direct starts images lazily from their registry, without a hub, if their layers have
// tables of contents (eStargz and zstd:chunked), or if the image has a SOCI index.
//
// It reads an image's tables, makes the tree and its index on this machine, and signs the
// statements about them with a key of its own (Answerer). The chunks are ranges of the original
// layers (package layer), which its Source reads from the registry. All else is as with a hub: the
// same mounts, cache, prefetching and take-over.
//
// It promises that an image is only answered for a repository that the operator trusts for this
// (Config.Tables): nothing binds a table to a diffID, and runtimes share snapshots by diffIDs. It
// also promises that the registry has let this node read the image's manifest. A layer without a
// table, or with one that contradicts itself, makes the image unknown here: it is pulled as usual.
//
// It keeps what it needs to serve a tree on the disk. So after a restart what is cached is served
// without the network. On disk, below the node's root:
//
//	direct/key             the seed of the key
//	direct/TREE/image      the repositories, the diffIDs and the layers, as JSON
//	direct/TREE/index      the index
//	direct/TREE/locations  the units of its chunks
//	direct/TREE/N          the layer table of layer N
//	direct/TREE/PACK       the layer table of those units of a layer that a start reads
//	direct/new-N/          a tree being made; removed after a crash
//	direct/rm-TREE/        a tree being removed; removed after a crash
package direct
