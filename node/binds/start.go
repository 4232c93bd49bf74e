package binds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/platforms"
	"github.com/distribution/reference"

	"lighter/node/mount"
	"lighter/node/platform"
	"lighter/wire"
)

// ErrNoImage reports that the hub answers, and has no image of a name.
var ErrNoImage = errors.New("no hub has image")

// Started is an image that is mounted for a container.
type Started struct {
	Bind
	Config json.RawMessage `json:"config"` // the image's config, verified
}

// Configs gets the verified configs of images.
type Configs interface {
	Config(ctx context.Context, image wire.Image) ([]byte, error)
}

// Starter mounts images for containers that start without containerd.
type Starter struct {
	Binds   *Binds
	Configs Configs
}

// Start mounts the tree of the named image at dir, as Binds.Bind does, and returns the image's
// config. It looks the image up with Find.
func (s *Starter) Start(ctx context.Context, name, platform, dir string) (Started, error) {
	real, err := RealDir(dir)
	if err != nil {
		return Started{}, err
	}
	image, err := Find(ctx, s.Binds.hub, name, platform)
	if err != nil {
		return Started{}, err
	}
	config, err := s.Configs.Config(ctx, image)
	if err != nil {
		return Started{}, err
	}
	started := Started{Bind: Bind{Name: image.Name, Dir: real, Chain: image.Chain}, Config: config}
	err = s.Binds.add(ctx, started.Bind, func(tree, dir string) error {
		s.Binds.chains.NoteStart(image.Chain)
		return mount.Bind(tree, dir)
	})
	return started, err
}

// Find returns the named image that a hub has. A name without a registry's host is looked up as it
// is, then as a name of Docker Hub. Without a platform, Find chooses the image for this machine.
// The error wraps ErrNoImage if the hub has no image of that name, whatever its platform and state.
func Find(ctx context.Context, hub Hub, name, wanted string) (wire.Image, error) {
	for _, name := range Names(name) {
		images, err := hub.Images(ctx, name)
		if err != nil {
			return wire.Image{}, fmt.Errorf("look up image %q: %w", name, err)
		}
		if len(images) == 0 {
			continue
		}
		if images, err = fitting(images, name, wanted); err != nil {
			return wire.Image{}, err
		}
		if images, err = mountable(images, hub.URL(), name); err != nil {
			return wire.Image{}, err
		}
		return images[0], nil
	}
	return wire.Image{}, fmt.Errorf("%w %q (asked: %s)", ErrNoImage, name, hub.URL())
}

// Names returns the names under which an image is looked up: the name as it is, and then, if it has
// no host, as a name of Docker Hub.
func Names(name string) []string {
	full, err := reference.ParseNormalizedNamed(name)
	if err != nil || strings.HasPrefix(name, reference.Domain(full)+"/") {
		return []string{name}
	}
	return []string{name, reference.TagNameOnly(full).String()}
}

// fitting returns the images of a name that fit a platform, at least one.
func fitting(images []wire.Image, name, wanted string) ([]wire.Image, error) {
	fit, err := platform.Fitting(images, wanted)
	if err != nil || len(fit) > 0 {
		return fit, err
	}
	var others []string
	for _, image := range images {
		others = append(others, image.Platform)
	}
	if wanted == "" {
		wanted = "this machine (" + platforms.DefaultString() + ")"
	}
	return nil, fmt.Errorf("image %q is not for %s, but for %s: choose one with --platform", name, wanted,
		strings.Join(others, ", "))
}
