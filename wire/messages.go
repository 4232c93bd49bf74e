package wire

import (
	"encoding/json"
	"time"

	"lighter/format/index"
)

// Chain is what the hub knows of a chain and of the chains above it. With it a node can also decide
// about the other layers of the pull.
type Chain struct {
	Link
	// Above lists known chains that build on this one, the nearest first, at most MaxAbove.
	Above []Link `json:"above,omitempty"`
	// Complete says that Above is complete: the hub knows no other chain above this one.
	Complete bool `json:"complete"`
}

// Link is one chain: a layer on a parent.
type Link struct {
	Chain  string `json:"chain"`            // OCI chainID, "sha256:…"
	Parent string `json:"parent,omitempty"` // chainID of the chain below; empty for the lowest
	DiffID string `json:"diffID"`           // of the chain's top layer
	// Statement is set if the chain is the top of an image.
	Statement *index.Statement `json:"statement,omitempty"`
}

// Manifest is what the hub knows of the image that a manifest's digest names. With it a node can
// decide about all layers of the image's pull.
type Manifest struct {
	Image   index.ImageStatement `json:"image"`
	DiffIDs []string             `json:"diffIDs"` // of the layers, the lowest first
	// LayerBytes are the sizes of the layers as tar streams: a hint, which no signature covers.
	// Hubs of earlier versions do not send it.
	LayerBytes []int64 `json:"layerBytes,omitempty"`

	Statement *index.Statement `json:"statement"` // of the image's tree
}

// Soon says that an image, which a manifest's digest names, is about to be ready. It is a guess,
// which no signature covers: a pull may wait for the image or go on without it.
type Soon struct {
	Seconds float64 `json:"seconds"` // until the image is ready
	Bytes   int64   `json:"bytes"`   // of the config and the compressed layers
}

// States of an image.
const (
	StateQueued = "queued" // waits to be ingested
	StateActive = "active" // is being ingested
	StateReady  = "ready"  // can be started
	StateFailed = "failed" // Image.Error says why; adding or pushing it again retries
	StateStored = "stored" // is kept and served as pushed: an attestation, a signature, another platform
)

// Image is one image, of one platform.
type Image struct {
	Name     string `json:"name"`               // [HOST/]REPO:TAG, or [HOST/]REPO@DIGEST
	Digest   string `json:"digest"`             // of its manifest
	Platform string `json:"platform,omitempty"` // os/arch[/variant]
	State    string `json:"state"`
	Error    string `json:"error,omitempty"`

	// The fields from Size to Tree are zero until the image is ready. Unique and Blobs are computed
	// in the background, which takes seconds on a large hub. Until then SizesPending is true, and
	// both are out of date, or zero for a new image.

	Size   int64  `json:"size"`           // bytes of the compressed layers and the config
	Bytes  int64  `json:"bytes"`          // of all files, plain
	Unique int64  `json:"uniqueBytes"`    // plain bytes of chunks that no other image has
	Blobs  int64  `json:"uniqueAllBytes"` // stored bytes, of chunks and original blobs, that no other image needs
	Chain  string `json:"chain,omitempty"`
	Tree   string `json:"tree,omitempty"`

	SizesPending bool `json:"sizesPending,omitempty"`

	Updated time.Time `json:"updated"` // when State last changed
}

// Add asks the hub to add an image.
type Add struct {
	Source   string `json:"source"`             // docker://HOST/REPO:TAG; empty: Name was pushed to the hub
	Name     string `json:"name,omitempty"`     // of the image on the hub; default: the source's reference
	Digest   string `json:"digest,omitempty"`   // only without Source: of the pushed manifest that gets this name
	Platform string `json:"platform,omitempty"` // os/arch[/variant]; default: the hub's configured platforms

	// Credentials for the source's registry. The hub keeps them sealed until the image is ready or
	// has failed, so that another process of the hub can continue the job.

	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	Token         string `json:"token,omitempty"`         // an identity token, which is exchanged for other tokens
	RegistryToken string `json:"registryToken,omitempty"` // a bearer token, which is sent as it is

	PlainHTTP bool `json:"plainHTTP,omitempty"` // allow HTTP to a registry on another machine
}

// Progress is one line of the answer to a long operation. The last line has Done set.
type Progress struct {
	// Step is "copy" (a blob from its source), "layer" (a layer is ingested), "check" (a layer, or
	// all chunks, are read back), "compare" (Bytes counts objects or blobs), "repair" (a layer is
	// read again), "collect" and "rewrite" (objects are deleted, packs made smaller), "mark" and
	// "sweep" (Bytes counts repositories in which unneeded blobs are found and deleted), "list"
	// (Bytes counts repositories whose tags are listed), "look" (Bytes counts images) or "wait"
	// (nothing new: the connection is kept open). Clients add "push", "mirror", "read" and "write".
	Step     string   `json:"step,omitempty"`
	Item     string   `json:"item,omitempty"`  // of the step: a short digest, a name
	Bytes    int64    `json:"bytes,omitempty"` // done so far
	Total    int64    `json:"total,omitempty"` // 0: not known
	Done     bool     `json:"done,omitempty"`
	Error    string   `json:"error,omitempty"`
	Status   int      `json:"status,omitempty"`   // the HTTP status for Error; 0: the operation failed
	Problems []string `json:"problems,omitempty"` // the problems that a verification found
	Images   []Image  `json:"images,omitempty"`
	Check    *Check   `json:"check,omitempty"` // result of a comparison of the hub's stores

	Collection *Collection `json:"collection,omitempty"` // what a collection has done

	Wishlist *WishlistResult `json:"wishlist,omitempty"` // what the hub has made of a wishlist
}

// Collection says what a collection has removed, or would remove if DryRun is set.
type Collection struct {
	At     time.Time `json:"at"` // its end
	DryRun bool      `json:"dryRun,omitempty"`
	Trees  int64     `json:"trees"`
	Chains int64     `json:"chains"`
	Layers int64     `json:"layers"`
	Packs  int64     `json:"packs"`
	Bytes  int64     `json:"bytes"` // of the objects, without layer records

	PackBytes int64 `json:"packBytes"` // of Packs; they count in Bytes

	// Rewritten is the number of packs that were replaced by smaller ones. A later collection
	// deletes the old packs, and counts them in its Bytes.
	Rewritten int64 `json:"rewritten"`

	// Unrenewed is the number of trees whose locations could not be renewed, because an object is
	// lost or damaged. The packs that these locations name stay.
	Unrenewed int64 `json:"unrenewed,omitempty"`

	DeadBytes int64 `json:"deadBytes"`          // not needed, but in packs that stay, because other chunks of them are needed
	AllBytes  int64 `json:"allBytes,omitempty"` // freed by all collections until now

	// Of the hub's registry.
	Links     int64 `json:"links"`     // a repository's links to blobs and manifests that nothing in the repository names
	Blobs     int64 `json:"blobs"`     // blobs and manifests that nothing names
	Released  int64 `json:"released"`  // layers that need not be stored (keep_blobs); of a dry run: the maximum
	BlobBytes int64 `json:"blobBytes"` // of Blobs and Released

	// Only of a dry run: trees that no image has, and images that the retention rules would remove.
	// A later collection removes what these images have.
	Unserved []Unserved `json:"unserved,omitempty"`
	Images   []Verdict  `json:"images,omitempty"`
}

// Unserved is a tree that no image has.
type Unserved struct {
	Tree  string    `json:"tree"`
	Name  string    `json:"name,omitempty"` // of its image that was removed last, if that is known
	Bytes int64     `json:"bytes"`          // of its index, locations and startup packs
	Since time.Time `json:"since"`          // when it last lost an image or a holder; zero: not known
	Goes  bool      `json:"goes"`           // the next collection removes it
	Why   string    `json:"why"`
}

// States of a job.
const (
	JobQueued    = "queued"  // waits for its turn
	JobRunning   = "running" // a process of the hub works on it
	JobPaused    = "paused"  // waits until it is retried
	JobDone      = "done"
	JobFailed    = "failed" // Job.Error says why
	JobCancelled = "cancelled"
)

// Requests to a running job.
const (
	JobAgain      = "again"   // to run once more afterwards, because it was requested again
	JobRestart    = "restart" // to stop and run once more, for another request
	JobCancel     = "cancel"
	JobPause      = "pause"
	JobPauseAgain = "pause again" // JobPause of a job that was requested again
)

// Job is a piece of the hub's work. It survives the end of the process that works on it.
type Job struct {
	N int64 `json:"job"`
	// Kind says what the job does. More kinds may follow:
	//
	//	image       copies the images of a name to the hub, and ingests them
	//	verify      reads the images of a name back
	//	layout      makes startup packs of a tree
	//	recompress  compresses the startup packs of a tree better
	//	name        removes an image, or compares its name with the registry
	//	retention   applies the retention rules
	//	collect     frees trees, layers and packs that no image needs, and blobs of the registry
	//	fsck        compares the hub's stores with each other
	//	sweep       looks for objects that only the bucket or only the catalog has
	//	scrub       reads all objects
	//	look        looks at an image of another registry that somebody wants
	//	wishlist    reads a wishlist, and looks at its images
	Kind string `json:"kind"`
	// Foreign says that the process that answers does not run jobs of that kind. A hub's process of
	// another release may run them.
	Foreign  bool       `json:"foreign,omitempty"`
	Key      string     `json:"key"` // what the job is about: for example the name of an image, or a tree
	State    string     `json:"state"`
	Request  string     `json:"request,omitempty"`  // what a running job is asked to do
	Priority int64      `json:"priority"`           // jobs of higher priority run first
	Attempts int64      `json:"attempts"`           // number of attempts that have begun
	Owner    string     `json:"owner,omitempty"`    // the process of the hub that works on it
	Progress []Progress `json:"progress,omitempty"` // about a second old
	Error    string     `json:"error,omitempty"`    // of the last attempt
	// Result is what the job has found out. For a verification it is a list of the problems, as
	// strings.
	Result  json.RawMessage `json:"result,omitempty"`
	RunAt   time.Time       `json:"runAt"` // the job does not run before this time
	Created time.Time       `json:"created"`
	Updated time.Time       `json:"updated"`
}

// Inspection is all that the hub knows of one image. Format and Key are the hub's, and always set.
// The other fields below Image are zero until the image is ready.
type Inspection struct {
	Image
	Layers    []LayerInfo `json:"layers"`
	Files     int64       `json:"files"`
	Chunks    int64       `json:"chunks"`
	Packs     int64       `json:"packs"`      // without startup packs
	Units     int64       `json:"units"`      // of these packs
	IndexSize int64       `json:"indexBytes"` // plain
	IndexWire int64       `json:"indexWire"`  // as sent, with the locations

	StartupPacks int64 `json:"startupPacks"` // they repeat chunks of other packs
	StartupBytes int64 `json:"startupBytes"` // stored; other images may share them

	Format int    `json:"format"` // of indexes that the hub makes
	Key    string `json:"key"`    // the first key that the hub signs with, as index.FormatKey writes it

	// SignedBy are the hub's keys that have signed the statement about the image's tree. Processes
	// of one hub may have different keys while one replaces another. Older hubs do not set it.
	SignedBy []string `json:"signedBy,omitempty"`
}

// LayerInfo is one layer of an Inspection.
type LayerInfo struct {
	Digest    string `json:"digest"`
	DiffID    string `json:"diffID"`
	Chain     string `json:"chain"`
	MediaType string `json:"mediaType"`
	Size      int64  `json:"size"`  // compressed bytes
	Bytes     int64  `json:"bytes"` // of the tar stream
	Entries   int64  `json:"entries"`
}

// Starts is what the hub knows of how a ready image starts.
type Starts struct {
	Name      string        `json:"name"`
	Digest    string        `json:"digest"` // of its manifest
	Platform  string        `json:"platform,omitempty"`
	Tree      string        `json:"tree"`
	Workloads []Workload    `json:"workloads"` // the most frequent first; empty: no start was reported
	Packs     []StartupPack `json:"packs"`     // in the order in which nodes fetch them
	// Pending says that the startup packs will soon be made again, from newer traces or with better
	// compression.
	Pending bool `json:"pending,omitempty"`
	// Lost is when the image's startup packs were evicted, because the packs of more recently used
	// images take all the space. Zero: they were not evicted.
	Lost time.Time `json:"lost,omitzero"`
}

// Workload is a group of starts that read nearly the same. Files, ranges and bytes are those of
// one of these starts.
type Workload struct {
	ID     string   `json:"id"`     // unique within the image
	Starts int64    `json:"starts"` // number of recent starts
	Files  int64    `json:"files"`  // read
	Ranges int64    `json:"ranges"` // of these files
	Bytes  int64    `json:"bytes"`  // of these ranges, plain
	First  []string `json:"first"`  // paths of the first files that are read
	Packs  []int    `json:"packs"`  // indexes into Starts.Packs
}

// StartupPack is a pack whose chunks are used together.
type StartupPack struct {
	Pack     string `json:"pack"`
	Units    int    `json:"units"`
	Bytes    int64  `json:"bytes"`    // as sent
	AtMount  bool   `json:"atMount"`  // fetched at every mount
	Triggers int    `json:"triggers"` // number of chunks whose read starts the fetch
}

// Forgotten says which recordings of an image the hub has removed.
type Forgotten struct {
	Workloads []string `json:"workloads"` // IDs
	Starts    int64    `json:"starts"`    // of these workloads
	Waiting   int64    `json:"waiting"`   // traces that were not processed yet
}
