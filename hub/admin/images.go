package admin

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/wire"
)

// maxRequest bounds a request's body, in bytes.
const maxRequest = 64 << 10

var errNoName = answer.Invalid(errors.New("name is missing"))

func (s *Server) getImages(_ http.ResponseWriter, req *http.Request) (any, error) {
	name, err := nameIn(req)
	if err != nil {
		return nil, err
	}
	images, err := s.Catalog.Images(req.Context(), name)
	if err != nil {
		return nil, err
	}
	return s.describeAll(req.Context(), name, images)
}

func (s *Server) getInspections(_ http.ResponseWriter, req *http.Request) (any, error) {
	images, err := s.named(req)
	if err != nil {
		return nil, err
	}
	described, err := s.describeAll(req.Context(), images[0].Name, images)
	if err != nil {
		return nil, err
	}
	list := make([]wire.Inspection, len(images))
	for i, image := range images {
		list[i].Image = described[i]
		if err := s.inspect(req.Context(), image, &list[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// nameIn returns the name that a request gives, in its full form, or "".
func nameIn(req *http.Request) (string, error) {
	name := req.URL.Query().Get("name")
	if name == "" {
		return "", nil
	}
	ref, err := report.ParseName(name)
	return ref.Name(), err
}

// named returns the images with the name that a request gives. If there are none, it returns an
// error.
func (s *Server) named(req *http.Request) ([]catalog.Image, error) {
	name, err := nameIn(req)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, errNoName
	}
	images, err := s.Catalog.Images(req.Context(), name)
	if err == nil && len(images) == 0 {
		err = s.elsewhere(name, fmt.Errorf("image %s: %w", name, catalog.ErrNotFound))
	}
	return images, err
}

// elsewhere adds a hint to the error about an image that does not exist: to which other domain its
// repository belongs, or else which command lists the images.
func (s *Server) elsewhere(name string, err error) error {
	ref, parseErr := wire.ParseName(name)
	if parseErr != nil || !errors.Is(err, catalog.ErrNotFound) {
		return err
	}
	if of := s.DomainOf(ref.Repository); of != s.Domain {
		return fmt.Errorf("%w in domain %q: its repository belongs to domain %q (--domain %s)", err, s.Domain, of, of)
	}
	return fmt.Errorf("%w (lighter images lists what the hub has)", err)
}

// describeAll describes images. For ready images, it looks up the bytes that no other image shares,
// as the catalog computed them last. name is the name of all these images, or "" if they have
// several.
func (s *Server) describeAll(ctx context.Context, name string, images []catalog.Image) ([]wire.Image, error) {
	list := make([]wire.Image, len(images)) // never null
	sizes, current, err := s.Catalog.Sizes(ctx, name)
	if err != nil {
		return nil, err
	}
	for i, image := range images {
		d := describe(image)
		if d.State == wire.StateReady {
			d.Unique, d.Blobs = sizes[d.Digest].Chunks, sizes[d.Digest].Stored
			d.SizesPending = !current
		}
		list[i] = d
	}
	return list, nil
}

func describe(image catalog.Image) wire.Image {
	d := wire.Image{Name: image.Name, Digest: image.Digest, Platform: image.Platform, State: image.State,
		Error: image.Error,
		Size:  image.Size, Bytes: image.Bytes, Chain: image.Chain, Updated: image.Updated}
	if image.Tree != (chunk.ID{}) {
		d.Tree = image.Tree.String()
	}
	return d
}

func (s *Server) inspect(ctx context.Context, image catalog.Image, i *wire.Inspection) error {
	i.Layers, i.Format, i.Key = []wire.LayerInfo{}, index.Format, index.FormatKey(s.Keys[0])
	if image.State != wire.StateReady {
		return nil
	}
	layers, err := s.Catalog.ImageLayers(ctx, image.N)
	if err != nil {
		return err
	}
	t, err := s.Catalog.Tree(ctx, image.Tree)
	if err != nil {
		return err
	}
	statement, err := s.Catalog.Statement(ctx, image.Chain)
	if err == nil {
		i.SignedBy = signers(statement, s.Keys)
	} else if !errors.Is(err, catalog.ErrNotFound) { // it may not be signed yet in this version's format
		return err
	}
	i.Layers = append(i.Layers, layers...)
	i.Files, i.Chunks, i.Packs, i.Units = t.Files, t.Chunks, t.Packs, t.Units
	i.IndexSize, i.IndexWire = t.IndexBytes, t.IndexWire+t.LocationsWire
	layout, err := s.Catalog.Starts.Layout(ctx, image.Tree)
	for _, p := range layout.Packs {
		i.StartupPacks++
		i.StartupBytes += p.Size
	}
	return err
}

// signers returns which of the keys have signed a statement, in the form of index.FormatKey.
func signers(s *index.Statement, keys []ed25519.PublicKey) (all []string) {
	for _, key := range keys {
		if s.SignedBy(key) {
			all = append(all, index.FormatKey(key))
		}
	}
	return all
}

func (s *Server) postImage(w http.ResponseWriter, req *http.Request) error {
	if err := answer.WantJSON(req); err != nil {
		return err
	}
	var add wire.Add
	// Unknown fields come from a newer client, and are ignored because they are optional.
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxRequest)).Decode(&add); err != nil {
		return answer.Invalid(fmt.Errorf("parse the request: %w", err))
	}
	p := newProgress(w)
	images, err := s.Images.Add(req.Context(), add, p.send)
	last := wire.Progress{Done: true}
	for _, image := range images {
		last.Images = append(last.Images, describe(image))
	}
	if err == nil {
		err = failures(images)
	}
	return p.end(last, err)
}

// failures returns an error with the reasons of all failed images.
func failures(images []catalog.Image) error {
	var reasons []string
	for _, image := range images {
		if image.State == wire.StateFailed {
			reasons = append(reasons, image.Error)
		}
	}
	if reasons == nil {
		return nil
	}
	return errors.New(strings.Join(reasons, "; "))
}

func (s *Server) postVerify(w http.ResponseWriter, req *http.Request) error {
	if err := answer.WantJSON(req); err != nil {
		return err
	}
	p, name := newProgress(w), req.URL.Query().Get("name")
	problems, err := s.Images.Verify(req.Context(), name, p.send)
	return p.end(wire.Progress{Done: true, Problems: problems}, s.elsewhere(name, err))
}

func (s *Server) postFsck(w http.ResponseWriter, req *http.Request) error {
	if err := answer.WantJSON(req); err != nil {
		return err
	}
	var fsck wire.Fsck
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxRequest)).Decode(&fsck); err != nil {
		return answer.Invalid(fmt.Errorf("parse the request: %w", err))
	}
	p := newProgress(w)
	check, err := s.Checker.Fsck(req.Context(), fsck, p.send)
	return p.end(wire.Progress{Done: true, Check: check}, err)
}

func (s *Server) deleteImage(w http.ResponseWriter, req *http.Request) error {
	name := req.URL.Query().Get("name")
	if name == "" {
		return errNoName
	}
	if err := s.Images.Remove(req.Context(), name, req.URL.Query().Get("force") != ""); err != nil {
		return s.elsewhere(name, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
