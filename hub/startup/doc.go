// Package startup promises a good guess of what the next start of an image will
// read, in packs that are worth fetching whole: it makes recordings of traces,
// keeps a bounded number of them, sorts them into workloads (starts that read
// nearly the same), and lays the chunks that they share out in packs.
//
//	Tree.Record   a trace, of one tree's device → a recording, which names files
//	Tree.Known    recordings, perhaps of another tree → those that say something of it
//	Keep          the recordings of an image, and further ones → those to keep
//	Begins        the same, and one further → whether that is like none of them
//	Without       the same, without a workload
//	Tree.Guess    an image's config → recordings of starts that nobody has seen
//	Tree.Layout   recordings of both kinds → packs, for one tree
//	Workloads     the same recordings, as people want to see them
//
// Values go in and values come out: the same input gives the same output. It reads
// a tree's index, and contents where it is given a function for that; it refuses to
// know of catalogs, objects and networks.
//
// Nobody has to be right. A recording that is absurd, stale or made up costs bytes:
// what it alone asks for is in packs of its own, which nobody fetches who does not
// read what is in them, and it has a bounded weight in what is fetched at mount.
package startup
