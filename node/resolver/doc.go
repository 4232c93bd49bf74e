// Package resolver answers one question about each layer of a pull: is this chain ours? If it is,
// the runtime need not download the layer, because the node can mount the chain's tree.
//
// A Resolver puts the question to its Answerers (a hub is one) once per pull, and answers the other
// layers of the pull from that answer. It believes only statements that a pinned key has signed,
// whichever answerer gave them. With TrustImage it also requires a signed statement that the image
// may be pulled from the repository of the pull.
//
// What Claim has confirmed cannot be taken back: the runtime keeps no layer of its own. So a chain
// is claimed only if a verified statement is about it or about an image above it. As soon as it is
// clear which image that is, a claim also waits until the image's index has begun to arrive and its
// header was verified. The claim of an image's top chain waits for the whole index. One gap
// remains: while a chain belongs to several images, it is claimed before the index of any of them
// is fetched. If the index of the pulled image then fails, this pull fails. A second pull at once
// unpacks the image as usual.
//
// A pull never depends on a hub without need. budget.go lists how long a pull waits for each step.
//
// On disk, below the node's root:
//
//	chains/HEX    the signed statement of a chain whose tree is cached or in flight, as JSON
//	hub.keys      the pinned keys, if they were learned and not configured
package resolver
