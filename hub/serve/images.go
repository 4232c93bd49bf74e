package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"

	"lighter/wire"
)

// maxRequest bounds a request's body, in bytes.
const maxRequest = 64 << 10

func (s *Server) getImages(w http.ResponseWriter, req *http.Request) error {
	images, err := s.named(req, false)
	if err != nil {
		return err
	}
	sizes, err := s.sizes(req, images)
	if err != nil {
		return err
	}
	answer := make([]wire.Image, len(images)) // never null
	for i, image := range images {
		answer[i] = describe(image)
		if image.State == wire.StateReady {
			answer[i].Unique, answer[i].Blobs = sizes[image.Digest].Chunks, sizes[image.Digest].Stored
		}
	}
	return sendJSON(w, answer)
}

// named lists the images of the name that the request gives.
func (s *Server) named(req *http.Request, needed bool) ([]catalog.Image, error) {
	name := req.URL.Query().Get("name")
	if name != "" {
		ref, err := wire.ParseName(name)
		if err != nil {
			return nil, invalid(err)
		}
		name = ref.Name()
	}
	if name == "" && needed {
		return nil, invalid(fmt.Errorf("name is missing"))
	}
	images, err := s.catalog.Images(req.Context(), name)
	if err == nil && len(images) == 0 && needed {
		err = fmt.Errorf("image %s: %w", name, catalog.ErrNotFound)
	}
	return images, err
}

// sizes returns what each of the images, which named has listed, has alone.
func (s *Server) sizes(req *http.Request, images []catalog.Image) (map[string]catalog.Sizes, error) {
	if !slices.ContainsFunc(images, func(i catalog.Image) bool { return i.State == wire.StateReady }) {
		return nil, nil // and nothing to wait for
	}
	name := ""
	if req.URL.Query().Get("name") != "" {
		name = images[0].Name
	}
	return s.catalog.Sizes(req.Context(), name)
}

// describe says of an image what its row has.
func describe(image catalog.Image) wire.Image {
	d := wire.Image{Name: image.Name, Digest: image.Digest, Platform: image.Platform, State: image.State, Error: image.Error,
		Size: image.Size, Bytes: image.Bytes, Chain: image.Chain, Updated: image.Updated}
	if image.Tree != (chunk.ID{}) {
		d.Tree = image.Tree.String()
	}
	return d
}

func (s *Server) getInspections(w http.ResponseWriter, req *http.Request) error {
	images, err := s.named(req, true)
	if err != nil {
		return err
	}
	sizes, err := s.sizes(req, images)
	if err != nil {
		return err
	}
	answer := []wire.Inspection{}
	for _, image := range images {
		inspection, err := s.inspect(req.Context(), image)
		if err != nil {
			return err
		}
		if image.State == wire.StateReady {
			inspection.Unique, inspection.Blobs = sizes[image.Digest].Chunks, sizes[image.Digest].Stored
		}
		answer = append(answer, inspection)
	}
	return sendJSON(w, answer)
}

func (s *Server) inspect(ctx context.Context, image catalog.Image) (wire.Inspection, error) {
	i := wire.Inspection{Image: describe(image), Layers: []wire.LayerInfo{}, Format: index.Format, Key: index.FormatKey(s.keys[0])}
	if image.State != wire.StateReady {
		return i, nil
	}
	layers, err := s.catalog.ImageLayers(ctx, image.N)
	if err != nil {
		return i, err
	}
	t, err := s.catalog.Tree(ctx, image.Tree)
	if err != nil {
		return i, err
	}
	i.Layers = append(i.Layers, layers...)
	i.Files, i.Chunks, i.Packs, i.Units, i.IndexSize, i.IndexWire = t.Files, t.Chunks, t.Packs, t.Units, t.IndexBytes, t.IndexWire+t.LocationsWire
	layout, err := s.catalog.Layout(ctx, image.Tree)
	for _, p := range layout.Packs {
		i.StartupPacks++
		i.StartupBytes += p.Size
	}
	return i, err
}

func (s *Server) postImage(w http.ResponseWriter, req *http.Request) error {
	if err := wantJSON(req); err != nil {
		return err
	}
	var add wire.Add
	// A field that this hub does not know is of a newer client, which can do without.
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxRequest)).Decode(&add); err != nil {
		return invalid(fmt.Errorf("understand the request: %w", err))
	}
	lines := newLines(w)
	stop := lines.keepAlive()
	images, err := s.ingest.Add(req.Context(), add, lines.send)
	stop()
	last := wire.Progress{Done: true}
	for _, image := range images {
		last.Images = append(last.Images, describe(image))
	}
	if err == nil {
		err = failures(images)
	}
	return lines.end(last, err)
}

// failures is the error of those of the images that failed.
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
	return fmt.Errorf("%s", strings.Join(reasons, "; "))
}

func (s *Server) deleteImage(w http.ResponseWriter, req *http.Request) error {
	name := req.URL.Query().Get("name")
	if name == "" {
		return invalid(fmt.Errorf("name is missing"))
	}
	if err := s.ingest.Remove(req.Context(), name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) postVerify(w http.ResponseWriter, req *http.Request) error {
	if err := wantJSON(req); err != nil {
		return err
	}
	if _, err := s.named(req, true); err != nil {
		return err
	}
	lines := newLines(w)
	stop := lines.keepAlive()
	problems, err := s.ingest.Verify(req.Context(), req.URL.Query().Get("name"), lines.send)
	stop()
	return lines.end(wire.Progress{Done: true, Problems: problems}, err)
}
