package imagestore

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/node/imageconfig"
	"lighter/wire"
)

// restoreList makes the list from the files that the tools read. It believes layers.json: layers
// must not disappear. It believes an image of images.json if the image's files have the digests by
// which they are named. It returns an error, and the rest of the list, if something is lost.
func restoreList(dir string) (*list, error) {
	l := newList()
	var layers []layer
	lost := readJSON(layersFile(dir), &layers)
	if lost != nil {
		lost = fmt.Errorf("layers that only images of this machine use are lost: %w", lost)
	}
	for _, y := range layers {
		l.addLayer(y)
	}
	var images []image
	if err := readJSON(imagesFile(dir), &images); err != nil && lost == nil {
		lost = fmt.Errorf("images that were used, and that the hubs do not have any more, are lost: %w", err)
	}
	names := map[string]bool{}
	for _, i := range images {
		if err := l.restoreImage(dir, i, names); err != nil && lost == nil {
			lost = fmt.Errorf("image %s is lost until a hub answers: %w", i.ID, err)
		}
	}
	return l, lost
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	return nil
}

// restoreImage adds an image of images.json, with all of its manifests. names are the names of
// other images: the tools read no list in which two images have the same name.
func (l *list) restoreImage(dir string, i image, names map[string]bool) error {
	config, err := readData(dir, i.ID, "sha256:"+i.ID, "sha256:"+i.ID)
	if err != nil {
		return err
	}
	var parsed v1.Image
	if err := json.Unmarshal(config, &parsed); err != nil {
		return fmt.Errorf("parse its config: %w", err)
	}
	listed := wire.Image{Name: strings.Join(i.Names, " "), Digest: i.Digest, Updated: i.Created,
		Chain: identity.ChainID(parsed.RootFS.DiffIDs).String()}
	var all []description // by manifest; the first one is the image's own
	for _, key := range append([]string{manifestPrefix + i.Digest}, i.BigDataNames...) {
		manifest, ok := strings.CutPrefix(key, manifestPrefix)
		if !ok {
			continue
		}
		text, err := readData(dir, i.ID, key, manifest)
		if err != nil {
			return err
		}
		listed.Digest = manifest
		d, err := describe(listed, imageconfig.Image{Manifest: text, Config: config}, nil)
		if err == nil && d.image.ID != i.ID {
			err = fmt.Errorf("manifest %s has another config", manifest)
		}
		if err != nil {
			return err
		}
		all = append(all, d)
	}
	// Nobody knows whether a container was started from it, so it stays listed.
	k := known{Used: true}
	for _, name := range i.Names {
		ref, err := wire.ParseName(name)
		if err != nil || names[name] {
			continue
		}
		k.Names = append(k.Names, name)
		k.Repositories = append(k.Repositories, withoutHost(ref.NamedRepository()))
		k.Gone = k.Gone || ref.Digest != ""
	}
	switch {
	case len(k.Names) == 0:
		return errors.New("it has no name")
	case slices.ContainsFunc(l.Images, func(other known) bool { return other.ID == i.ID }):
		return errors.New("it is listed twice")
	}
	for _, d := range all {
		d.image.Repositories = k.Repositories
		l.add(d)
	}
	added := &l.Images[len(l.Images)-1]
	added.Names, added.Used, added.Gone = k.Names, k.Used, k.Gone
	for _, name := range k.Names {
		names[name] = true
	}
	return nil
}

// readData reads the data of an image with a key, and verifies its digest.
func readData(dir, id, key, name string) ([]byte, error) {
	want, err := digest.Parse(name)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	b, err := os.ReadFile(filepath.Join(imageDir(dir, id), fileOf(key)))
	if err == nil && want.Algorithm().FromBytes(b) != want {
		err = fmt.Errorf("%s is damaged", key)
	}
	return b, err
}
