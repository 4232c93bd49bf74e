// Package wire holds what a hub and its clients agree on: the paths of the HTTP
// API, its messages, the names of images, and limits (docs/wire.md describes them).
//
// It is pure: it sends nothing and serves nothing. Clients are the packages client,
// origin and mirror; the servers are hub/serve and hub/admin.
package wire

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

// Every path starts with Prefix, then the scope. The number is that of the
// wire: a hub may serve several.
const (
	Prefix = "/lighter/1"
	// CopyHeader is set in requests of who copies what a hub has, as a mirror does: the
	// hub does not take them for starts.
	CopyHeader = "Lighter-Copy"
	// MissingHeader is set in a hub's 404 if the hub itself does not have what was asked for:
	// a 404 without it may be that of a proxy whose hub is not there.
	MissingHeader = "Lighter-Not-Found"
	// DefaultScope is the scope that is used where none is configured.
	DefaultScope = "default"
)

// Paths below Prefix/SCOPE. All are GET unless it is said otherwise.
//
//	/key                 the hub's public keys, as index.FormatKey writes them, a line each
//	/chains/CHAIN        Chain, as JSON; 404 if the chain is not known
//	/manifests/DIGEST    Manifest, as JSON; 404 if no image that is ready has it
//	/trees/CHAIN         index.Statement, as JSON: the tree of the chain, made now if need be
//	/indexes/TREE        the index, zstd-compressed
//	/locations/TREE      the locations, zstd-compressed
//	/packs/PACK/N        unit N of a pack
//	/chunks/ID           a unit that holds the chunk
//	/images              []Image, as JSON;  ?name=NAME: those with that name
//	/images  POST        Add: takes an image in; answers with a stream of Progress, a JSON object a line
//	/images?name=  DELETE  takes the image away
//	/images/inspect?name=  []Inspection, as JSON: of all that the name stands for
//	/images/verify?name=   POST: a stream of Progress, a JSON object a line
//	/traces?name=          []Starts, as JSON: how the images start that the name stands for
//	/traces?name=  DELETE  Forgotten, as JSON: removes what is kept of the starts;  &workload=ID: of these alone
//	/traces/export?name=   recordings, as package trace encodes them as text
//	/traces/import?name=   POST: recordings
//	/traces/TREE     POST  a trace, as package trace encodes it: what a start has read
//
// Errors have a status of 400 or more and a body of {"error": "…"}; in a stream
// that has begun, the last line has them.
func ChainPath(scope, chain string) string {
	return fmt.Sprintf("%s/%s/chains/%s", Prefix, scope, chain)
}
func ManifestPath(scope, digest string) string {
	return fmt.Sprintf("%s/%s/manifests/%s", Prefix, scope, digest)
}
func TreePath(scope, chain string) string {
	return fmt.Sprintf("%s/%s/trees/%s", Prefix, scope, chain)
}
func IndexPath(scope string, id chunk.ID) string {
	return fmt.Sprintf("%s/%s/indexes/%s", Prefix, scope, id)
}
func LocationsPath(scope string, id chunk.ID) string {
	return fmt.Sprintf("%s/%s/locations/%s", Prefix, scope, id)
}
func UnitPath(scope string, u chunk.Unit) string {
	return fmt.Sprintf("%s/%s/packs/%s", Prefix, scope, u)
}
func ChunkPath(scope string, id chunk.ID) string {
	return fmt.Sprintf("%s/%s/chunks/%s", Prefix, scope, id)
}
func TracePath(scope string, tree chunk.ID) string {
	return fmt.Sprintf("%s/%s", TracesPath(scope), tree)
}
func TracesPath(scope string) string { return fmt.Sprintf("%s/%s/traces", Prefix, scope) }

// IsTrace tells whether a request is a node's that sends a trace: beside what reads,
// the only one of a node.
func IsTrace(method, path string) bool {
	rest, ok := strings.CutPrefix(path, Prefix+"/")
	parts := strings.Split(rest, "/")
	if !ok || method != http.MethodPost || len(parts) != 3 || parts[1] != "traces" {
		return false
	}
	_, err := chunk.ParseID(parts[2])
	return err == nil
}

func KeyPath(scope string) string    { return fmt.Sprintf("%s/%s/key", Prefix, scope) }
func ImagesPath(scope string) string { return fmt.Sprintf("%s/%s/images", Prefix, scope) }

// Chain is what the hub says of a chain, and of those above it: all that a pull
// of any image on it will ask.
type Chain struct {
	Link
	// Above are the known chains that stand on this one, nearest first, at most
	// MaxAbove of them.
	Above []Link `json:"above,omitempty"`
	// Complete says that Above holds all of them: a chain on this one that it
	// does not name is unknown.
	Complete bool `json:"complete"`
}

// MaxAbove bounds Chain.Above.
const MaxAbove = 1000

// Link is one chain: a layer on a parent.
type Link struct {
	Chain  string `json:"chain"`            // OCI chainID, "sha256:…"
	Parent string `json:"parent,omitempty"` // chainID of the chain below; empty for the lowest
	DiffID string `json:"diffID"`           // of the chain's top layer
	// Statement is there if the chain is the top of an image.
	Statement *index.Statement `json:"statement,omitempty"`
}

// Manifest is what the hub says of an image by its manifest: all that a pull of it will
// ask.
type Manifest struct {
	Image   index.ImageStatement `json:"image"`
	DiffIDs []string             `json:"diffIDs"` // of its layers, the lowest first
	// Statement is that of the image's tree, which its chain names.
	Statement *index.Statement `json:"statement"`
}

// Image states.
const (
	StateQueued = "queued" // waits for its turn
	StateActive = "active" // is being taken in
	StateReady  = "ready"  // can be run
	StateFailed = "failed" // Error says why; adding or pushing it again tries again
	StateStored = "stored" // cannot be run (an attestation, a signature, another platform): kept and served
)

// Image is one image (of one platform) that the hub has, or tries to take in.
type Image struct {
	Name     string `json:"name"`               // [HOST/]REPO:TAG, or [HOST/]REPO@DIGEST
	Digest   string `json:"digest"`             // of its manifest
	Platform string `json:"platform,omitempty"` // os/arch[/variant]
	State    string `json:"state"`
	Error    string `json:"error,omitempty"`
	// Of images that are ready; bytes are 0 before. The unique ones are counted
	// a moment later, on a large hub in seconds, and are as before until then.
	Size   int64  `json:"size"`           // compressed layers and config, bytes
	Bytes  int64  `json:"bytes"`          // of all files, plain
	Unique int64  `json:"uniqueBytes"`    // plain bytes of chunks that no other image has
	Blobs  int64  `json:"uniqueAllBytes"` // stored bytes that no other image needs: its unique chunks compressed, and its original blobs
	Chain  string `json:"chain,omitempty"`
	Tree   string `json:"tree,omitempty"`

	Updated time.Time `json:"updated"` // when its state last changed
}

// Add asks the hub to take an image in.
type Add struct {
	Source   string `json:"source"`             // docker://HOST/REPO:TAG, or empty: the image NAME was pushed to the hub's own registry
	Name     string `json:"name,omitempty"`     // what to call it; default: the source's reference
	Digest   string `json:"digest,omitempty"`   // without a source: of what was pushed by digest, which the name is to stand for
	Platform string `json:"platform,omitempty"` // os/arch[/variant]; default: all that run on the hub's architecture
	// Username and Password, or a token, are for the source's registry. They are
	// used for this image and kept nowhere.
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	Token         string `json:"token,omitempty"`         // an identity token, which is exchanged for others
	RegistryToken string `json:"registryToken,omitempty"` // a bearer token, which is sent as it is
	PlainHTTP     bool   `json:"plainHTTP,omitempty"`     // the registry speaks HTTP; on loopback it may without
}

// Progress is one line of a long operation's answer. The last one has Done set.
type Progress struct {
	// What goes on: "copy" (a blob from its source), "layer" (a layer is taken
	// in), "check" (a layer, or all chunks, are read back), "wait" (nothing to
	// tell, but the hub is there); of the client itself "push".
	Step  string `json:"step,omitempty"`
	Item  string `json:"item,omitempty"`  // on what: a short digest, a name
	Bytes int64  `json:"bytes,omitempty"` // done so far
	Total int64  `json:"total,omitempty"` // 0: unknown
	Done  bool   `json:"done,omitempty"`
	Error string `json:"error,omitempty"`
	// Problems are what a verification found: what is wrong, and where.
	Problems []string `json:"problems,omitempty"`
	Images   []Image  `json:"images,omitempty"`
}

// Inspection is what the hub knows of one image, in full. What is beside Image
// is of images that are ready, and zero or empty of others, but for Format and
// Key: those are the hub's.
type Inspection struct {
	Image
	Layers    []LayerInfo `json:"layers"`
	Files     int64       `json:"files"`
	Chunks    int64       `json:"chunks"`
	Packs     int64       `json:"packs"`
	Units     int64       `json:"units"`
	IndexSize int64       `json:"indexBytes"` // plain
	IndexWire int64       `json:"indexWire"`  // as it is sent, with its locations
	// Startup packs have chunks that other packs have too; Packs and Units do not
	// count them.
	StartupPacks int64  `json:"startupPacks"`
	StartupBytes int64  `json:"startupBytes"` // stored; other images may have the same packs
	Format       int    `json:"format"`       // of indexes that the hub makes
	Key          string `json:"key"`          // the first with which it signs, as index.FormatKey writes it
}

// Starts is what the hub knows of how an image starts, which is ready.
type Starts struct {
	Name      string        `json:"name"`
	Digest    string        `json:"digest"` // of its manifest
	Platform  string        `json:"platform,omitempty"`
	Tree      string        `json:"tree"`
	Workloads []Workload    `json:"workloads"` // the most used first; none: nobody has told yet
	Packs     []StartupPack `json:"packs"`     // in the order in which nodes fetch them
	// Pending says that there will be others soon: for what was told since, or the
	// same pressed.
	Pending bool `json:"pending,omitempty"`
	// Lost is since when it has no startup packs because there is no room for those of
	// all images, and others were used since; zero: it may have some.
	Lost time.Time `json:"lost,omitzero"`
}

// Workload is starts that read nearly the same. What they read is that of one of
// them.
type Workload struct {
	ID     string   `json:"id"`     // names it among those of the image
	Starts int64    `json:"starts"` // how many, lately
	Files  int64    `json:"files"`  // that are read
	Ranges int64    `json:"ranges"` // of them
	Bytes  int64    `json:"bytes"`  // in these, plain
	First  []string `json:"first"`  // paths of the files that are read first
	Packs  []int    `json:"packs"`  // places in Starts.Packs of those that have something of it
}

// Forgotten is what a hub has removed of what it kept of the starts of an image.
type Forgotten struct {
	Workloads []string `json:"workloads"` // their IDs
	Starts    int64    `json:"starts"`    // that they stood for
	Waiting   int64    `json:"waiting"`   // traces that it had not looked at yet
}

// StartupPack is a pack whose chunks are used together.
type StartupPack struct {
	Pack     string `json:"pack"`
	Units    int    `json:"units"`
	Bytes    int64  `json:"bytes"`    // as they are sent
	AtMount  bool   `json:"atMount"`  // it is fetched whenever the image starts
	Triggers int    `json:"triggers"` // chunks of which reading one has it fetched
}

// LayerInfo is one layer of an Inspection.
type LayerInfo struct {
	Digest    string `json:"digest"`
	DiffID    string `json:"diffID"`
	Chain     string `json:"chain"`
	MediaType string `json:"mediaType"`
	Size      int64  `json:"size"`  // compressed bytes
	Bytes     int64  `json:"bytes"` // of its tar stream
	Entries   int64  `json:"entries"`
}
