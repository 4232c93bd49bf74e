// Package direct starts images lazily from their registry, without a hub, if their layers have
// tables of contents (eStargz and zstd:chunked), or if the image has a SOCI index or an attached
// index (package attached).
//
// It reads an image's tables, and makes the tree and its index on this machine; those of an
// attached index it fetches. It signs the statements about them with a key of its own (Answerer).
// The chunks are in startup packs of an attached index, or ranges of the original layers (package
// layer), which its Source reads from the registry. All else is as with a hub: the same mounts,
// cache, prefetching and take-over.
//
// Nothing binds a table to a diffID, and runtimes share snapshots by diffIDs. So the package
// promises that an image is only answered if the operator trusts its repository for this
// (Config.Tables), or if this node has read all of its layers, and found in them what the tables
// say (Config.Verified). It reads the layers of all images that it has answered by tables, in the
// background (Verify), but for those that it has read as a whole to make their tables: their chunks
// are in the cache (StoreSeen). A tree of which it finds that a layer differs is Refused from then
// on, also after a restart. An attached index counts if one of Config.Keys has signed it.
//
// It also promises that the registry has let this node read the image's manifest. A layer without a
// table, or with one that contradicts itself, makes the image unknown here: it is pulled as usual.
//
// It keeps what it needs to serve a tree on the disk. So after a restart what is cached is served
// without the network. On disk, below the node's root:
//
//	direct/key             the seed of the key
//	direct/verified        what was found about layers and their tables, as JSON
//	direct/TREE/image      the repositories, the diffIDs, the layers and their tables, as JSON
//	direct/TREE/index      the index
//	direct/TREE/locations  the units of its chunks
//	direct/TREE/N          the layer table of layer N
//	direct/TREE/PACK       the layer table of those units of a layer that a start reads
//	direct/new-N/          a tree being made; removed after a crash
//	direct/rm-TREE/        a tree being removed; removed after a crash
package direct
