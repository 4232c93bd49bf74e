package directory

import "time"

// The limits of this package. ARCHITECTURE.md lists those that bound a node's memory.
const (
	// listTTL is how old a list may be that answers `ls` without a request to a hub. nameTTL is the
	// same for the answer about one name, and how long the kernel keeps a name. missingTTL is the
	// same for names that no hub has.
	listTTL    = 5 * time.Second
	nameTTL    = 5 * time.Second
	missingTTL = time.Second
	// awayPause is how long no hub is asked after a request has failed. Older answers are used.
	awayPause = 5 * time.Second
	// listTimeout and nameTimeout bound the request for all images, and for one. With an older
	// list, `ls` waits for listPatience at most.
	listTimeout  = 30 * time.Second
	nameTimeout  = 10 * time.Second
	listPatience = 2 * time.Second
	// maxList is the size of the longest list, in bytes as sent: about 200,000 images.
	maxList = 128 << 20
	// maxOld is how many listed names are requested one by one when the list is too old.
	maxOld = 8
	// maxFound bounds the remembered answers about single names.
	maxFound = 4096

	// maxImages bounds the images that are mounted, or were mounted and are still on the disk. For
	// a further one, the image that was not used for the longest time is given up. An image that
	// was used within minUnused is not given up.
	maxImages = 256
	minUnused = 15 * time.Second
	// maxShare bounds, in the same way, the images that one user besides root has in use, and those
	// that are mounted for the user's own user namespaces, and for all namespaces below: each
	// namespace with a mapping of its own has mounts of its own.
	maxShare = 64
	// mountsTogether is how many images are mounted at a time. Others wait.
	mountsTogether = 16
	// mountTimeout bounds the time until an image is mounted: less than the 100 s after which a
	// read fails. bindTimeout bounds the last step, which needs no network.
	mountTimeout = 60 * time.Second
	bindTimeout  = 2 * time.Second
	// failedTTL is how long a failed mount answers without a new attempt. maxFailed bounds the
	// failures that are remembered.
	failedTTL = 2 * time.Second
	maxFailed = 1024
	// checkPause is the least time between two checks whether an image is still mounted.
	checkPause = time.Second
	// maxSweep and minSweep bound the pause between two looks for idle images.
	maxSweep = 30 * time.Second
	minSweep = time.Second
)
