// Package imagestore keeps an additional image store of containers/storage, which Podman, Buildah,
// Skopeo and CRI-O read: the images of the hubs appear there without being pulled, and are mounted
// when a container starts.
//
// A layer of the store has the ID and the digests that its tools would give it after a pull. Its
// diff is not the layer's own difference but the merged tree of the chain that ends in this layer,
// and no layer has lower layers. So a container has one lower layer, whichever layer it starts
// from. The diff is an absolute symbolic link to DIR/trees/HEX, which package directory serves: to
// follow the link mounts the tree.
//
// # Layers
//
// To save or push an image, a tool needs its layers' tar streams. It finds LAYER.tar-split.gz for
// each layer, of which containers/storage makes the tar stream. It is a symbolic link to a file of
// the same FUSE file system. The file is made while the tool reads it: the node fetches the layer
// from a hub, decompresses it, and passes on all of its bytes. The file ends properly only if the
// layer has its diffID. Nothing is kept. To look at the file, or to open it, waits for nothing.
//
// # What stays
//
// A pull through the store makes an image of the tool's own store whose layers are ours, and no
// tool tells us. If such a layer disappeared, every command of the tool would fail. So a layer that
// was listed once stays listed. An image that the hubs do not have any more is not listed any more,
// unless it was started from here: its containers refer to it. It is named by its digest then.
//
// If lighter.json is lost, the list is made from the files that the tools read. All images count as
// started from here then.
//
// # Files
//
//	DIR/lighter.json                     what is listed; the other files are made from it
//	DIR/overlay/ID/{link,diff}, DIR/overlay/l/LINK
//	DIR/overlay-layers/layers.{json,lock}, DIR/overlay-layers/ID.tar-split.gz
//	DIR/overlay-images/images.{json,lock}, DIR/overlay-images/ID/   manifests and config
//	DIR/trees/                           (package directory)
//
// Each file has its old or its new contents at any time. Layers are written before the images that
// have them. Long-running readers (podman system service, CRI-O) notice a change by the locks'
// contents. The locks change after the lists, and at each start.
//
// # Trust
//
// An image is listed if the hub's key signs that its manifest has this chain and this repository,
// and if manifest, config and chain fit together (package imageconfig). Which manifest a tag has,
// and how large a layer's tar stream is, is the hub's word. Every user of the machine can read
// every image of the store.
package imagestore
