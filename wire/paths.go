package wire

import (
	"fmt"
	"regexp"
	"strings"

	"lighter/format/chunk"
)

const (
	// Version is the version of the wire: of the paths and messages. A hub may serve several.
	Version = 1
	// Prefix begins every path and is followed by the domain. It ends with the version.
	Prefix = "/lighter/" + string(rune('0'+Version))
	// HooksPrefix begins the paths to which webhooks are sent, and is followed by the name of a
	// hook.
	HooksPrefix = "/hooks/"
	// DefaultDomain is the domain that every hub has. It has all images that belong to no other
	// domain.
	DefaultDomain = "default"
)

// maxDomain bounds a domain's name, in bytes.
const maxDomain = 32

// CheckDomain returns an error unless name is valid for a domain: 1 to 32 lower-case letters,
// digits and hyphens, with a letter or digit at each end.
func CheckDomain(name string) error {
	if len(name) > maxDomain || !domainPattern.MatchString(name) {
		return fmt.Errorf("%q is no name of a domain: want 1 to %d lower-case letters, digits and hyphens, "+
			"with a letter or digit at each end", name, maxDomain)
	}
	return nil
}

var domainPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// The paths below Prefix/DOMAIN. The method is GET unless another is named. "Add →" is a request
// with an Add as its body. Without an arrow, the text begins with the answer, if there is one.
//
//	/key                   the hub's public keys, one per line, as index.FormatKey writes them
//	/chains/CHAIN          Chain; 404 if the hub does not know the chain
//	/manifests/DIGEST      Manifest; 404 if no image that is ready has it
//	/soon/DIGEST           Soon: when an image that is pending will be ready; 404 otherwise
//	/trees/CHAIN           index.Statement of the chain's tree; if needed, the hub makes the tree
//	/indexes/TREE          an index, compressed with zstd
//	/locations/TREE        a tree's locations, compressed with zstd
//	/packs/PACK/N          unit N of a pack
//	/chunks/ID             any unit that holds the chunk
//	/images                []Image;  ?name=NAME: those of one name
//	/images POST           Add → a stream of Progress: adds an image
//	/images?name= DELETE   removes an image
//	/images/inspect?name=  []Inspection: all images of the name
//	/images/watch          a stream of Event: all images, and then each change;  ?name=NAME: those
//	                       of one name
//	/status/NAME.json      Status: of the images of a name;  .svg: as a badge
//	/events                EventLog;  ?dead=1: the dead deliveries
//	/events/retry POST     Retried: makes dead deliveries again;  ?event=ID: those of one event
//	/images/verify?name= POST   a stream of Progress: verifies the images of the name
//	/fsck POST             Fsck → a stream of Progress: compares the hub's stores
//	/jobs                  []Job: those that have not ended;  ?ended=1: those that ended last
//	/jobs/cancel?job=N POST   Job: ends it, also while it runs
//	/jobs/pause?job=N POST    Job: stops it until it is retried
//	/jobs/retry?job=N POST    Job: lets it run as soon as possible, also after it has failed
//	/gc POST               Job: begins a collection, unless one is running
//	/gc/await?job=N POST   a stream of Progress: the collection's, until it has ended
//	/gc/plan POST          a stream of Progress: what retention rules and a collection would do
//	/traces?name=          []Starts: how the images of the name start
//	/traces?name= DELETE   Forgotten: removes recordings;  &workload=ID: of one workload
//	/traces/export?name=   recordings, in the text form of package trace
//	/traces/import?name= POST   recordings in the same form → adds them
//	/traces/TREE POST      a trace, as package trace encodes it → adds what a start has read
//	/held POST             Held → Unknown: what a node or a mirror has; the answer names the
//	                       trees that the hub does not have
//	/retention             []Verdict: what the retention rules say about each image
//	/retention POST        Job: applies the rules;  ?confirm=REPOSITORY: the job may remove any
//	                       share of this repository's images
//	/holders               []Holder;  ?name=NAME: those that have an image of the name
//	/holders?holder=ID DELETE   forgets a holder: ID is as /holders shows it
//
// Messages are JSON. A stream has one message per line. An error has a status of 400 or more and
// the body {"error": "…"}; in a stream that has begun, it is in the last line.

// ChainPath is the path of a Chain.
func ChainPath(domain, chain string) string { return below(domain, "chains", chain) }

// ManifestPath is the path of a Manifest.
func ManifestPath(domain, digest string) string { return below(domain, "manifests", digest) }

// SoonPath is the path of a Soon.
func SoonPath(domain, digest string) string { return below(domain, "soon", digest) }

// TreePath is the path of the statement of a chain's tree.
func TreePath(domain, chain string) string { return below(domain, "trees", chain) }

// IndexPath is the path of an index.
func IndexPath(domain string, tree chunk.ID) string { return below(domain, "indexes", tree.String()) }

// LocationsPath is the path of a tree's locations.
func LocationsPath(domain string, tree chunk.ID) string {
	return below(domain, "locations", tree.String())
}

// UnitPath is the path of a unit.
func UnitPath(domain string, u chunk.Unit) string { return below(domain, "packs", u.String()) }

// ChunkPath is the path of any unit that holds a chunk.
func ChunkPath(domain string, id chunk.ID) string { return below(domain, "chunks", id.String()) }

// KeyPath is the path of the hub's public keys.
func KeyPath(domain string) string { return below(domain, "key") }

// ImagesPath is the path of the images.
func ImagesPath(domain string) string { return below(domain, "images") }

// FsckPath is the path to which a Fsck is sent.
func FsckPath(domain string) string { return below(domain, "fsck") }

// JobsPath is the path of the jobs.
func JobsPath(domain string) string { return below(domain, "jobs") }

// CollectPath is the path of collections.
func CollectPath(domain string) string { return below(domain, "gc") }

// TracesPath is the path of the traces.
func TracesPath(domain string) string { return below(domain, "traces") }

// TracePath is the path to which nodes send traces of a tree.
func TracePath(domain string, tree chunk.ID) string { return below(domain, "traces", tree.String()) }

// RegistryPath is the path of a manifest or a blob (kind: RegistryManifests, RegistryBlobs) in the
// registry of a hub. It begins at the root of the hub's host, because clients of registries expect
// it there.
func RegistryPath(repository, kind, digest string) string {
	return "/v2/" + repository + "/" + kind + "/" + digest
}

// Kinds of objects in a hub's registry.
const (
	RegistryManifests = "manifests"
	RegistryBlobs     = "blobs"
)

func below(domain string, parts ...string) string {
	return Prefix + "/" + domain + "/" + strings.Join(parts, "/")
}
