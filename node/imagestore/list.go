package imagestore

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/node/imageconfig"
	"lighter/wire"
)

// list is what the store lists. It is the contents of lighter.json.
type list struct {
	Layers []layer `json:"layers"` // parents first
	Images []known `json:"images"`

	chains map[string]string // of the layers, by ID
	tops   map[string]bool   // the chains of all layers
}

// known is an image of the list.
type known struct {
	image
	Chain        string   `json:"chain"`
	Repositories []string `json:"repositories"`   // where it may be pulled from
	Used         bool     `json:"used,omitempty"` // its tree was mounted from here
	Gone         bool     `json:"gone,omitempty"` // the hubs do not have it any more
}

func newList() *list { return &list{chains: map[string]string{}, tops: map[string]bool{}} }

// readList reads the list of the store in dir. If it cannot be read, readList returns an error, and
// the list that restoreList makes.
func readList(dir string) (*list, error) {
	var stored list
	err := readJSON(stateFile(dir), &stored)
	if err != nil {
		l, lost := restoreList(dir)
		switch {
		case lost != nil:
			err = fmt.Errorf("%w; %w", err, lost)
		case errors.Is(err, fs.ErrNotExist) && len(l.Layers) == 0:
			err = nil // the store is new
		}
		return l, err
	}
	l := newList()
	l.Images = stored.Images
	for _, y := range stored.Layers {
		l.addLayer(y)
	}
	return l, nil
}

// addLayer adds a layer, unless the list has it. Its parent must be in the list.
func (l *list) addLayer(y layer) {
	if l.chains[y.ID] != "" || y.Parent != "" && l.chains[y.Parent] == "" {
		return
	}
	l.Layers = append(l.Layers, y)
	l.chains[y.ID] = chainOf(l.chains[y.Parent], y.DiffID)
	l.tops[l.chains[y.ID]] = true
}

// description is an image of a hub as the store needs it.
type description struct {
	listed wire.Image
	image  known
	data   map[string][]byte // by key
	layer  []layer           // the lowest first
}

// describe makes the entries of an image. bytes has the sizes of the layers' tar streams, if they
// are known.
func describe(listed wire.Image, all imageconfig.Image, bytes []int64) (d description, err error) {
	var manifest v1.Manifest
	var config v1.Image
	if err := errors.Join(json.Unmarshal(all.Manifest, &manifest), json.Unmarshal(all.Config, &config)); err != nil {
		return d, fmt.Errorf("parse image %s: %w", listed.Name, err)
	}
	if why := unreadable(manifest); why != "" {
		return d, fmt.Errorf("image %s cannot be in an image store: %s", listed.Name, why)
	}
	diffIDs := config.RootFS.DiffIDs
	if len(diffIDs) != len(manifest.Layers) {
		return d, fmt.Errorf("image %s has %d layers in its manifest, and %d in its config", listed.Name,
			len(manifest.Layers), len(diffIDs))
	}
	if manifest.Config.Digest.Algorithm() != digest.SHA256 {
		return d, fmt.Errorf("image %s: the digest of its config is not SHA-256", listed.Name)
	}
	i := image{ID: manifest.Config.Digest.Encoded(), Digest: listed.Digest, Metadata: "{}",
		BigDataSizes: map[string]int64{}, BigDataDigests: map[string]string{}}
	if i.Created = listed.Updated; config.Created != nil {
		i.Created = *config.Created
	}
	parent := ""
	for n, diffID := range diffIDs {
		blob := manifest.Layers[n]
		y := layer{ID: layerID(parent, diffID), Parent: parent, Created: i.Created,
			CompressedDigest: blob.Digest.String(), CompressedSize: blob.Size, DiffID: diffID.String(),
			Compression: compression(blob.MediaType)}
		if len(bytes) == len(diffIDs) {
			y.Bytes = bytes[n]
		}
		d.layer = append(d.layer, y)
		parent = y.ID
	}
	i.Layer = parent
	d.listed, d.image = listed, known{image: i, Chain: listed.Chain, Repositories: all.Repositories}
	d.data = map[string][]byte{manifestKey: all.Manifest, manifestPrefix + listed.Digest: all.Manifest,
		manifest.Config.Digest.String(): all.Config}
	for key, b := range d.data {
		d.image.addData(key, b)
	}
	return d, nil
}

// unreadable returns why the tools cannot read a manifest, or "". They list no image at all if they
// cannot read one.
func unreadable(m v1.Manifest) string {
	config, layers := dockerConfig, dockerLayer
	switch {
	case m.SchemaVersion != 2:
		return fmt.Sprintf("its manifest has schema version %d, not 2", m.SchemaVersion)
	case m.MediaType == "" || m.MediaType == v1.MediaTypeImageManifest:
		config, layers = v1.MediaTypeImageConfig, "application/vnd."
	case m.MediaType != dockerManifest:
		return fmt.Sprintf("its manifest has the media type %q", m.MediaType)
	}
	if m.Config.MediaType != config {
		return fmt.Sprintf("its config has the media type %q, not %s", m.Config.MediaType, config)
	}
	for _, layer := range m.Layers {
		if !strings.HasPrefix(layer.MediaType, layers) {
			return fmt.Sprintf("it has a layer of media type %q in a manifest of type %q", layer.MediaType, m.MediaType)
		}
	}
	return ""
}

// Docker's media types.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerLayer    = "application/vnd.docker.image.rootfs."
)

func (i *image) addData(key string, b []byte) {
	if i.BigDataDigests[key] == "" {
		i.BigDataNames = append(i.BigDataNames, key)
		slices.Sort(i.BigDataNames)
	}
	i.BigDataSizes[key], i.BigDataDigests[key] = int64(len(b)), digest.FromBytes(b).String()
}

// add adds an image and its layers. If the list has an image with this config, it gets the further
// manifest.
func (l *list) add(d description) {
	for _, y := range d.layer {
		l.addLayer(y)
	}
	n := slices.IndexFunc(l.Images, func(k known) bool { return k.ID == d.image.ID })
	if n < 0 {
		l.Images = append(l.Images, d.image)
		return
	}
	k := &l.Images[n]
	for key, b := range d.data {
		if key != manifestKey {
			k.addData(key, b)
		}
	}
	k.Repositories = append(k.Repositories, d.image.Repositories...)
	slices.Sort(k.Repositories)
	k.Repositories = slices.Compact(k.Repositories)
}

// find returns the image with a manifest if it may have a name, or nil.
func (l *list) find(byManifest map[string]*known, listed wire.Image) *known {
	k := byManifest[listed.Digest]
	ref, err := wire.ParseName(listed.Name)
	if k == nil || err != nil || !slices.Contains(k.Repositories, ref.NamedRepository()) {
		return nil
	}
	return k
}

// byManifest returns the images by the digests of their manifests.
func (l *list) byManifest() map[string]*known {
	all := map[string]*known{}
	for n := range l.Images {
		for _, key := range l.Images[n].BigDataNames {
			if digest, ok := strings.CutPrefix(key, manifestPrefix); ok {
				all[digest] = &l.Images[n]
			}
		}
	}
	return all
}

// setNames gives the images the names that the hubs' images have now, each name to one image. A
// used image that the hubs do not have any more is named by its digest. Unused ones are not in the
// list any more.
func (l *list) setNames(listed []wire.Image, used map[string]bool) {
	images, names := l.byManifest(), map[string]*known{}
	for _, i := range listed {
		if k := l.find(images, i); k != nil {
			for _, name := range storeNames(i, k.Repositories) {
				if names[name] == nil {
					names[name] = k
				}
			}
		}
	}
	for n := range l.Images {
		l.Images[n].Names, l.Images[n].Gone = nil, false
		l.Images[n].Used = l.Images[n].Used || used[l.Images[n].Chain]
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		names[name].Names = append(names[name].Names, name)
	}
	l.Images = slices.DeleteFunc(l.Images, func(k known) bool { return len(k.Names) == 0 && !k.Used })
	for n := range l.Images {
		if k := &l.Images[n]; len(k.Names) == 0 {
			k.Names, k.Gone = digestNames(k), true
		}
	}
	slices.SortFunc(l.Images, func(a, b known) int { return cmp.Compare(a.ID, b.ID) })
}

// takenNames returns the names of all images.
func (l *list) takenNames() map[string]bool {
	taken := map[string]bool{}
	for _, k := range l.Images {
		for _, name := range k.Names {
			taken[name] = true
		}
	}
	return taken
}

// storeNames returns the names that an image of the hub has in the store. The tools look for a name
// without a host under localhost. The hub's own registry may have hosts.
func storeNames(listed wire.Image, repositories []string) []string {
	ref, err := wire.ParseName(listed.Name)
	if err != nil {
		return nil
	}
	named := ref.NamedRepository()
	rest := strings.TrimPrefix(listed.Name, named)
	names := []string{withHost(listed.Name)}
	for _, r := range repositories {
		if _, path, _ := strings.Cut(r, "/"); path == ref.Repository {
			names = append(names, r+rest)
		}
	}
	return names
}

// digestNames returns the names of an image by its digest, one for each repository. An image
// without any name would do harm: if an image that was built on it is removed, Podman removes it,
// too, and fails, as this store is read-only.
func digestNames(k *known) (names []string) {
	for _, r := range k.Repositories {
		names = append(names, withHost(r)+"@"+k.Digest)
	}
	slices.Sort(names)
	return slices.Compact(names) // no tool reads a list with a name twice
}

// withHost returns a name with a host.
func withHost(name string) string {
	if host, _, below := strings.Cut(name, "/"); below && strings.ContainsAny(host, ".:") || host == "localhost" {
		return name
	}
	return localhost + name
}

// withoutHost undoes withHost.
func withoutHost(name string) string { return strings.TrimPrefix(name, localhost) }

// localhost is where the tools look for a name without a host.
const localhost = "localhost/"

// images returns what images.json has.
func (l *list) images() []image {
	images := []image{}
	for _, k := range l.Images {
		images = append(images, k.image)
	}
	return images
}
