// Package admin answers users' requests, which the lighter command sends: to list, add, verify and
// remove images, to list and change jobs and traces, and to compare the hub's stores. docs/wire.md
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
	Remove(ctx context.Context, name string) error
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
	Starts    Starts
	Holders   Holders
	Retention Retention
	Checker   Checker
	Collector Collector
	Bodies    *answer.Bodies
	Keys      []ed25519.PublicKey // the signing keys, the oldest first
	Log       *slog.Logger
}

// Register adds the server's routes to a router.
func (s *Server) Register(mux *answer.Mux) {
	mux.HandleJSON("GET", "/images", uncached, s.getImages)
	mux.HandleJSON("GET", "/images/inspect", uncached, s.getInspections)
	mux.Handle("POST", "/images", s.postImage)
	mux.Handle("POST", "/images/verify", s.postVerify)
	mux.Handle("DELETE", "/images", s.deleteImage)
	mux.Handle("POST", "/fsck", s.postFsck)
	mux.HandleJSON("GET", "/jobs", uncached, s.getJobs)
	mux.HandleJSON("POST", "/jobs/cancel", uncached, s.changeJob(s.Jobs.Cancel))
	mux.HandleJSON("POST", "/jobs/pause", uncached, s.changeJob(s.Jobs.Pause))
	mux.HandleJSON("POST", "/jobs/retry", uncached, s.changeJob(s.Jobs.Retry))
	mux.HandleJSON("GET", "/retention", uncached, s.getRetention)
	mux.HandleJSON("POST", "/retention", uncached, s.postRetention)
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
