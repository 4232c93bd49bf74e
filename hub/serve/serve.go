// Package serve answers requests of nodes, caches and mirrors (docs/wire.md). It sends statements,
// indexes, locations and units. It also receives what nodes report: traces, and the trees that they
// have.
//
// Immutable objects are sent whole, with their length and a long lifetime, so that any HTTP cache
// can keep them. Handlers only parse the request and call one part of the hub; they decide nothing.
package serve

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"sync"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/wire"
)

// Images answers the requests of nodes about images for which the catalog alone is not enough.
type Images interface {
	Manifest(ctx context.Context, digest string) (*wire.Manifest, error)
	Soon(ctx context.Context, digest string) (*wire.Soon, error)
	Tree(ctx context.Context, chain string) (*index.Statement, error)
}

// Traces receives what nodes report about starts.
type Traces interface {
	// Take keeps an encoded trace of a tree.
	Take(ctx context.Context, tree chunk.ID, sender string, body []byte) error
	// Used records that a node uses a tree.
	Used(tree chunk.ID)
}

// Holders receives what nodes and mirrors have.
type Holders interface {
	Report(ctx context.Context, held wire.Held, sender string) (wire.Unknown, error)
}

// Server answers nodes. Its fields are the parts of a hub that it uses. It is safe for concurrent
// use.
type Server struct {
	Catalog *catalog.Catalog
	Objects *objects.Store
	Images  Images
	Traces  Traces
	Holders Holders
	Bodies  *answer.Bodies
	Keys    []ed25519.PublicKey
	Proxies []netip.Prefix // their X-Forwarded-For is believed
	Log     *slog.Logger

	unnamed sync.Once // logs that a proxy is not in Proxies
}

// Register adds the server's routes to a router.
func (s *Server) Register(mux *answer.Mux) {
	mux.Handle("GET", "/key", s.getKeys)
	mux.HandleJSON("GET", "/chains/{chain}", aMoment, s.getChain)
	mux.HandleJSON("GET", "/manifests/{id}", aMoment, s.getManifest)
	mux.HandleJSON("GET", "/soon/{id}", uncached, s.getSoon)
	mux.HandleJSON("GET", "/trees/{chain}", uncached, s.getTree)
	mux.Handle("GET", "/indexes/{tree}", s.getIndex)
	mux.Handle("GET", "/locations/{tree}", s.getLocations)
	mux.Handle("GET", "/packs/{pack}/{n}", s.getUnit)
	mux.Handle("GET", "/chunks/{chunk}", s.getChunk)
	mux.Handle("POST", "/traces/{tree}", s.postTrace)
	mux.Handle("POST", "/held", s.postHeld)
}

// Cache-Control headers. Objects named by their digest never change. Chunks and locations are
// hints: a stale one costs a further request. Locations are cached only for a minute, because they
// improve soon after an image's first starts. Lookups may be cached for as long as nodes remember
// the answer, so that a cache answers many nodes that pull at once.
const (
	forever  = "public, max-age=31536000, immutable"
	anHour   = "public, max-age=3600"
	aMinute  = "public, max-age=60"
	aMoment  = "max-age=5"
	uncached = "no-cache"
)

func (s *Server) getKeys(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Cache-Control", uncached)
	for _, key := range s.Keys {
		_, _ = io.WriteString(w, index.FormatKey(key)+"\n")
	}
	return nil
}

func (s *Server) getChain(_ http.ResponseWriter, req *http.Request) (any, error) {
	return s.Catalog.Chain(req.Context(), req.PathValue("chain"))
}

func (s *Server) getManifest(_ http.ResponseWriter, req *http.Request) (any, error) {
	return s.Images.Manifest(req.Context(), req.PathValue("id"))
}

func (s *Server) getSoon(_ http.ResponseWriter, req *http.Request) (any, error) {
	return s.Images.Soon(req.Context(), req.PathValue("id"))
}

func (s *Server) getTree(_ http.ResponseWriter, req *http.Request) (any, error) {
	return s.Images.Tree(req.Context(), req.PathValue("chain"))
}

func (s *Server) getIndex(w http.ResponseWriter, req *http.Request) error {
	tree, err := parseID(req, "tree")
	if err != nil {
		return err
	}
	o, err := s.Objects.Open(req.Context(), objects.IndexKey(tree))
	if err != nil {
		return err
	}
	s.send(w, req, o, forever, tree.String())
	return nil
}

func (s *Server) getLocations(w http.ResponseWriter, req *http.Request) error {
	tree, err := parseID(req, "tree")
	if err != nil {
		return err
	}
	o, tag, err := s.openLocations(req.Context(), tree)
	if err != nil {
		return err
	}
	if req.Header.Get(wire.CopyHeader) == "" {
		s.Traces.Used(tree)
	}
	s.send(w, req, o, aMinute, tag.String())
	return nil
}

// openLocations opens the current locations of a tree. It retries if they are replaced meanwhile.
func (s *Server) openLocations(ctx context.Context, tree chunk.ID) (o *objects.Object, id chunk.ID, err error) {
	for range 3 {
		if id, err = s.Catalog.Starts.Locations(ctx, tree); err != nil {
			return nil, id, err
		}
		if o, err = s.Objects.Open(ctx, objects.LocationsKey(id)); !errors.Is(err, objects.ErrNotFound) {
			break
		}
	}
	return o, id, err
}

func (s *Server) getUnit(w http.ResponseWriter, req *http.Request) error {
	id, err := parseID(req, "pack")
	if err != nil {
		return err
	}
	n, err := parseNumber(req.PathValue("n"))
	if err != nil {
		return err
	}
	unit := chunk.Unit{Pack: id, N: n}
	return s.sendUnit(w, req, unit, forever, unit.String())
}

func (s *Server) getChunk(w http.ResponseWriter, req *http.Request) error {
	id, err := parseID(req, "chunk")
	if err != nil {
		return err
	}
	unit, err := s.Catalog.Unit(req.Context(), id)
	if err != nil {
		return err
	}
	return s.sendUnit(w, req, unit, anHour, "")
}

func (s *Server) sendUnit(w http.ResponseWriter, req *http.Request, unit chunk.Unit, cache, tag string) error {
	o, err := s.Objects.OpenUnit(req.Context(), unit)
	if err != nil {
		return err
	}
	s.send(w, req, o, cache, tag)
	return nil
}

func (s *Server) postTrace(w http.ResponseWriter, req *http.Request) error {
	tree, err := parseID(req, "tree")
	if err != nil {
		return err
	}
	body, release, err := s.Bodies.Read(w, req, trace.MaxBytes)
	if err != nil {
		return err
	}
	defer release()
	if err := s.Traces.Take(req.Context(), tree, s.senderOf(req), body); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) postHeld(w http.ResponseWriter, req *http.Request) error {
	body, release, err := s.Bodies.Read(w, req, wire.MaxHeldBytes)
	if err != nil {
		return err
	}
	defer release()
	var held wire.Held
	if err := json.Unmarshal(body, &held); err != nil {
		return answer.Invalid(fmt.Errorf("parse the report of held trees: %w", err))
	}
	unknown, err := s.Holders.Report(req.Context(), held, s.senderOf(req))
	if err != nil {
		return err
	}
	return answer.JSON(w, uncached, unknown)
}

// send sends a whole object and closes it. Ranges are not offered: caches keep a 200, but not a
// 206. tag identifies the bytes; if it is empty there is no ETag.
func (s *Server) send(w http.ResponseWriter, req *http.Request, o *objects.Object, cache, tag string) {
	defer o.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", cache)
	if tag != "" {
		h.Set("ETag", `"`+tag+`"`)
		// A request with no-cache means that the node has found the cache's copy damaged. The cache
		// must get the bytes again.
		if req.Header.Get("If-None-Match") == `"`+tag+`"` && req.Header.Get("Cache-Control") != "no-cache" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	h.Set("Content-Length", strconv.FormatInt(o.Size, 10))
	if req.Method == http.MethodHead {
		return
	}
	if _, err := o.WriteTo(w); err != nil {
		// The status is sent already. The client notices that bytes are missing.
		s.Log.Debug("cannot send an object", "path", req.URL.Path, "err", err)
	}
}

func parseID(req *http.Request, name string) (chunk.ID, error) {
	id, err := chunk.ParseID(req.PathValue(name))
	if err != nil {
		return id, answer.Invalid(err)
	}
	return id, nil
}

// parseNumber parses the canonical decimal form only, so that a unit has one URL.
func parseNumber(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != s {
		return 0, answer.Invalid(fmt.Errorf("%q is not the number of a unit", s))
	}
	return uint32(n), nil
}
