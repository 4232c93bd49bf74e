// Package admin answers users' requests, which the lighter command sends: to list, watch, add,
// verify and remove images, to list and change jobs, events and traces, and to compare the hub's
// stores. docs/wire.md
// describes the paths.
//
// Package access decides who may make changes, before a request comes here. Handlers only parse the
// request and call one part of the hub.
package admin

import (
	"context"
	"crypto/ed25519"
	"log/slog"

	"lighter/format/chunk"
	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/wire"
)

// Images adds, verifies and removes images. Add and Verify call report for each step. If report
// fails, they end early with its error.
type Images interface {
	Add(ctx context.Context, add wire.Add, report func(wire.Progress) error) ([]catalog.Image, error)
	// Verify returns the problems found.
	Verify(ctx context.Context, name string, report func(wire.Progress) error) ([]string, error)
	// Remove refuses to remove an image that lists or hooks want, unless force is true.
	Remove(ctx context.Context, name string, force bool) error
}

// Checker compares the hub's stores.
type Checker interface {
	// Fsck calls report for each step. If report fails, Fsck ends early with its error.
	Fsck(ctx context.Context, w wire.Fsck, report func(wire.Progress) error) (*wire.Check, error)
}

// Starts shows and changes what the hub knows about how images start.
type Starts interface {
	Describe(ctx context.Context, image catalog.Image) (wire.Starts, error)
	Export(ctx context.Context, tree chunk.ID) ([]byte, error)
	Import(ctx context.Context, tree chunk.ID, text []byte) error
	Forget(ctx context.Context, tree chunk.ID, workload string) (wire.Forgotten, error)
}

// Server answers users. Its fields are the parts of a hub that it uses. It is safe for concurrent
// use.
type Server struct {
	Domain    string
	DomainOf  func(repository string) string // returns the domain to which a repository belongs
	Catalog   *catalog.Catalog
	Images    Images
	Jobs      Jobs
	ImageJobs string // kind of the jobs that ingest images
	Starts    Starts
	Holders   Holders
	Events    Events
	Retention Retention
	Checker   Checker
	Collector Collector
	Wishlists Wishlists
	Bodies    *answer.Bodies
	Keys      []ed25519.PublicKey // the signing keys, the oldest first
	Log       *slog.Logger
}

// Register adds the server's routes to a router.
func (s *Server) Register(mux *answer.Mux) {
	mux.HandleJSON("GET", "/images", uncached, s.getImages)
	mux.HandleJSON("GET", "/images/inspect", uncached, s.getInspections)
	mux.Handle("POST", "/images", s.postImage)
	mux.Handle("GET", "/images/watch", s.watchImages)
	mux.Handle("POST", "/images/verify", s.postVerify)
	mux.Handle("GET", "/status/{name...}", s.getStatus)
	mux.HandleJSON("GET", "/events", uncached, s.getEvents)
	mux.HandleJSON("POST", "/events/retry", uncached, s.retryEvents)
	mux.Handle("DELETE", "/images", s.deleteImage)
	mux.Handle("POST", "/fsck", s.postFsck)
	mux.HandleJSON("GET", "/jobs", uncached, s.getJobs)
	mux.HandleJSON("POST", "/jobs/cancel", uncached, s.changeJob(s.Jobs.Cancel))
	mux.HandleJSON("POST", "/jobs/pause", uncached, s.changeJob(s.Jobs.Pause))
	mux.HandleJSON("POST", "/jobs/retry", uncached, s.changeJob(s.Jobs.Retry))
	mux.HandleJSON("GET", "/retention", uncached, s.getRetention)
	mux.HandleJSON("POST", "/retention", uncached, s.postRetention)
	mux.HandleJSON("GET", "/wishlists", uncached, s.getWishlists)
	mux.HandleJSON("POST", "/wishlists", uncached, s.postWishlist)
	mux.HandleJSON("POST", "/wishlists/sync", uncached, s.syncWishlist)
	mux.Handle("POST", "/wishlists/await", s.awaitWishlist)
	mux.Handle("POST", "/wishlists/plan", s.planWishlist)
	mux.Handle("DELETE", "/wishlists", s.deleteWishlist)
	mux.HandleJSON("GET", "/holders", uncached, s.getHolders)
	mux.Handle("DELETE", "/holders", s.deleteHolder)
	mux.HandleJSON("POST", "/gc", uncached, s.postCollection)
	mux.Handle("POST", "/gc/await", s.awaitCollection)
	mux.Handle("POST", "/gc/plan", s.planCollection)
	mux.HandleJSON("GET", "/traces", uncached, s.getTraces)
	mux.Handle("GET", "/traces/export", s.exportTraces)
	mux.Handle("POST", "/traces/import", s.importTraces)
	mux.HandleJSON("DELETE", "/traces", uncached, s.deleteTraces)
}

// uncached is a Cache-Control value: a cache asks the hub before it uses a stored answer.
const uncached = "no-cache"
