package imagestore

import "time"

// The limits of this package. ARCHITECTURE.md lists those that bound a node's memory.
const (
	// maxImages bounds the images with names. The tools read the whole list for each command.
	maxImages = 10000
	// maxList is the size of the longest list of the hubs' images, in bytes as sent.
	maxList = 128 << 20
	// listTimeout bounds the request for all images, and imageTimeout those for one image.
	listTimeout  = 30 * time.Second
	imageTimeout = 30 * time.Second
	// awayAfter is how many requests in a row are not answered before a round ends.
	awayAfter = 4
	// batchSize is how many new images are published together, and fetches how many are requested
	// at a time.
	batchSize = 256
	fetches   = 4

	// maxStreams bounds the files of tar-split that are open, and layers those that are made at a
	// time. Others wait. userStreams and userLayers bound them for one user besides root.
	maxStreams  = 64
	userStreams = 16
	layers      = 4
	userLayers  = 3
	// readerPatience is how long a reader may not read. A reader that waits any longer gets an
	// error, so that others get its place.
	readerPatience = 2 * time.Minute
	// maxBlobs is how many images are looked at for one that the hub has a layer of.
	maxBlobs = 4
	// blockSize is how many bytes are made at a time.
	blockSize = 128 << 10
)
