// Package serve promises what docs/wire.md says: the hub's answers over HTTP,
// each with the status that its error has, in one place (statusOf). What is
// immutable is sent with its length and a promise to caches that it is.
//
// There is no logic here: every path is one call of what the hub is made of. It
// refuses scopes that it does not serve, and never logs what a request carries
// beyond method, path and status.
package serve

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"

	"golang.org/x/sync/semaphore"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/hub/objects"

	"lighter/wire"
)

// Ingest is what the hub does when it is asked to.
type Ingest interface {
	Add(ctx context.Context, add wire.Add, tell func(wire.Progress) error) ([]catalog.Image, error)
	Remove(ctx context.Context, name string) error
	Manifest(ctx context.Context, digest string) (*wire.Manifest, error)
	Tree(ctx context.Context, chain string) (*index.Statement, error)
	Verify(ctx context.Context, name string, tell func(wire.Progress) error) ([]string, error)
}

// Server answers requests. It is an http.Handler for all below wire.Prefix.
type Server struct {
	catalog *catalog.Catalog
	objects *objects.Store
	ingest  Ingest
	keys    []ed25519.PublicKey
	log     *slog.Logger
	starts  Starts
	proxies []netip.Prefix // whose X-Forwarded-For is believed
	mux     *http.ServeMux
	bodies  *semaphore.Weighted // in bytes
}

// Starts is what the hub makes of how images start.
type Starts interface {
	Take(ctx context.Context, tree chunk.ID, sender string, body []byte) error
	Describe(ctx context.Context, image catalog.Image) (wire.Starts, error)
	Export(ctx context.Context, tree chunk.ID) ([]byte, error)
	Import(ctx context.Context, tree chunk.ID, text []byte) error
	Forget(ctx context.Context, tree chunk.ID, workload string) (wire.Forgotten, error)
	Used(tree chunk.ID)
}

// New returns a server for wire.DefaultScope, that believes what the proxies say of
// whom they ask for.
func New(c *catalog.Catalog, o *objects.Store, i Ingest, starts Starts, keys []ed25519.PublicKey, proxies []netip.Prefix, log *slog.Logger) *Server {
	s := &Server{catalog: c, objects: o, ingest: i, starts: starts, keys: keys, proxies: proxies, log: log, mux: http.NewServeMux(), bodies: semaphore.NewWeighted(maxBodies)}
	base := wire.Prefix + "/" + wire.DefaultScope
	for pattern, handle := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET " + base + "/key":              s.getKeys,
		"GET " + base + "/chains/{chain}":   s.getChain,
		"GET " + base + "/manifests/{id}":   s.getManifest,
		"GET " + base + "/trees/{chain}":    s.getTree,
		"GET " + base + "/indexes/{tree}":   s.getIndex,
		"GET " + base + "/locations/{tree}": s.getLocations,
		"GET " + base + "/packs/{pack}/{n}": s.getUnit,
		"GET " + base + "/chunks/{chunk}":   s.getChunk,
		"GET " + base + "/images":           s.getImages,
		"GET " + base + "/images/inspect":   s.getInspections,
		"POST " + base + "/images":          s.postImage,
		"DELETE " + base + "/images":        s.deleteImage,
		"POST " + base + "/images/verify":   s.postVerify,
		"GET " + base + "/traces":           s.getTraces,
		"DELETE " + base + "/traces":        s.deleteTraces,
		"GET " + base + "/traces/export":    s.exportTraces,
		"POST " + base + "/traces/import":   s.importTraces,
		"POST " + base + "/traces/{tree}":   s.postTrace,
	} {
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
			if err := handle(w, req); err != nil {
				s.sendError(w, req, err)
			}
		})
	}
	return s
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if _, pattern := s.mux.Handler(req); pattern == "" {
		s.sendError(w, req, errNoPath)
		return
	}
	s.mux.ServeHTTP(w, req)
}

func (s *Server) getKeys(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Cache-Control", "no-cache")
	for _, key := range s.keys {
		_, _ = io.WriteString(w, index.FormatKey(key)+"\n")
	}
	return nil
}

func (s *Server) getChain(w http.ResponseWriter, req *http.Request) error {
	chain, err := s.catalog.Chain(req.Context(), req.PathValue("chain"))
	if err != nil {
		return err
	}
	return sendCached(w, chain, aMoment)
}

func (s *Server) getManifest(w http.ResponseWriter, req *http.Request) error {
	manifest, err := s.ingest.Manifest(req.Context(), req.PathValue("id"))
	if err != nil {
		return err
	}
	return sendCached(w, manifest, aMoment)
}

func (s *Server) getTree(w http.ResponseWriter, req *http.Request) error {
	statement, err := s.ingest.Tree(req.Context(), req.PathValue("chain"))
	if err != nil {
		return err
	}
	return sendJSON(w, statement)
}

func (s *Server) getIndex(w http.ResponseWriter, req *http.Request) error {
	tree, err := chunk.ParseID(req.PathValue("tree"))
	if err != nil {
		return invalid(err)
	}
	o, err := s.objects.Open(req.Context(), objects.IndexKey(tree))
	if err != nil {
		return err
	}
	defer o.Close()
	s.send(w, req, o, forever, tree.String())
	return nil
}

func (s *Server) getLocations(w http.ResponseWriter, req *http.Request) error {
	tree, err := chunk.ParseID(req.PathValue("tree"))
	if err != nil {
		return invalid(err)
	}
	o, tag, err := s.openLocations(req.Context(), tree)
	if err != nil {
		return err
	}
	defer o.Close()
	if req.Header.Get(wire.CopyHeader) == "" {
		s.starts.Used(tree)
	}
	s.send(w, req, o, aMinute, tag.String())
	return nil
}

// openLocations opens the locations that a tree has now. If others take their
// place in between, those.
func (s *Server) openLocations(ctx context.Context, tree chunk.ID) (o *objects.Object, id chunk.ID, err error) {
	for range 3 {
		if id, err = s.catalog.Locations(ctx, tree); err != nil {
			return nil, id, err
		}
		if o, err = s.objects.Open(ctx, objects.LocationsKey(id)); !errors.Is(err, objects.ErrNotFound) {
			break
		}
	}
	return o, id, err
}

func (s *Server) getUnit(w http.ResponseWriter, req *http.Request) error {
	id, err := chunk.ParseID(req.PathValue("pack"))
	if err != nil {
		return invalid(err)
	}
	n, err := parseNumber(req.PathValue("n"))
	if err != nil {
		return invalid(err)
	}
	unit := chunk.Unit{Pack: id, N: n}
	o, err := s.objects.OpenUnit(req.Context(), unit)
	if err != nil {
		return err
	}
	defer o.Close()
	s.send(w, req, o, forever, unit.String())
	return nil
}

func (s *Server) getChunk(w http.ResponseWriter, req *http.Request) error {
	id, err := chunk.ParseID(req.PathValue("chunk"))
	if err != nil {
		return invalid(err)
	}
	unit, err := s.catalog.Unit(req.Context(), id)
	if err != nil {
		return err
	}
	o, err := s.objects.OpenUnit(req.Context(), unit)
	if err != nil {
		return err
	}
	defer o.Close()
	s.send(w, req, o, anHour, "")
	return nil
}
