// Package resolver decides for each layer of a pull whether the node claims the layer's chain. If
// it does, the runtime need not download the layer, because the node can mount the chain's tree.
//
// A Resolver makes one lookup per pull: it asks its Answerers (a hub is one), and uses the answer
// for the other layers of the pull, too. It believes only statements that a pinned key has signed,
// whichever answerer sent them. With TrustImage it also requires a signed statement that the image
// may be pulled from the pull's repository.
//
// A claim cannot be taken back, because the runtime does not download the layer. So a chain is
// claimed only if a verified statement is about this chain, or about a chain above it that is the
// top of an image. A lower chain is claimed without a tree of its own. Once it is clear which image
// is pulled, a claim waits until the first part of the image's index (header and page table) has
// arrived and was verified. The claim of an image's top chain waits for the whole index.
//
// One gap remains: a chain that several images share is claimed before the index of any of them is
// fetched. If the index of the pulled image then cannot be fetched, this pull fails. If the pull is
// repeated at once, the runtime unpacks the image as usual.
//
// A front calls Claim for each layer, Mount for each container, and NoteStart before the container
// runs.
//
// If no chain of a pull was claimed yet, and no hub answers, the pull goes on without a hub.
// budget.go lists how long it waits in each step.
//
// On disk, below the node's root:
//
//	chains/HEX    the signed statement of a chain whose tree is cached or in flight, as JSON
//	hub.keys      the pinned keys, if they were learned and not configured
package resolver
