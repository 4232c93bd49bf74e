package blobs

import (
	"time"

	"lighter/sleep"
)

// The limits of this package.
const (
	// maxFetches is how many layers are fetched at a time. Others wait.
	maxFetches = 4
	// copyBuffer is how many bytes are written to a file at a time.
	copyBuffer = 256 << 10

	// maxManifest bounds a manifest, an index and a config in containerd's content store, in bytes.
	maxManifest = 8 << 20
	// maxDepth bounds indexes of indexes.
	maxDepth = 3
	// rescan is the pause between two looks at all images.
	rescan = 10 * time.Minute
	// goneTTL is how long no link is made for a layer that no hub had. maxGone bounds these layers;
	// then all are forgotten.
	goneTTL = time.Hour
	maxGone = 4096
	// quietFailures is how many failed connections to containerd in a row are logged, with one
	// line. A node usually starts before containerd.
	quietFailures = 4
	// pullTimeout is how long a pull waits for the links of its layers.
	pullTimeout = 2 * time.Second
	// requestTimeout bounds the requests to containerd about one image.
	requestTimeout = time.Minute
	// releaseTimeout bounds the requests that remove all links.
	releaseTimeout = 30 * time.Second
)

var (
	// connectPauses are the pauses between failed connections to containerd.
	connectPauses = sleep.Backoff{First: 250 * time.Millisecond, Most: 15 * time.Second, Jitter: 0.25}
)
