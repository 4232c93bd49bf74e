// Package plan decides which startup packs an image should have: it predicts what the next start
// will read, and groups those chunks into packs that are worth fetching whole. It turns traces into
// recordings, keeps a bounded number of them, sorts them into workloads (starts that read nearly
// the same), and lays out the chunks that workloads share.
//
//	Tree.Recording   a trace of one tree's device → a recording, which names files
//	Tree.Known       recordings, perhaps of another tree → those that name something in this one
//	Sort, Kept       the recordings of an image, and further ones → those to keep
//	Without          the recordings of an image → those of the workloads that are not removed
//	Tree.Layout      recordings, and guesses of unreported starts → packs, for one tree
//	Workloads        the recordings of an image → its workloads, the most used first
//
// The package is pure: the same input gives the same output. It reads a tree's index. It knows
// nothing of catalogs, objects and networks.
//
// A recording need not be right. An absurd, stale or invented recording only wastes bytes: chunks
// that no other recording names get packs of their own, which only the readers of these chunks
// fetch. The influence of such a recording on what is fetched at mount is bounded.
package plan
