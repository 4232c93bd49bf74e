package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lighter/format/chunk"
	"lighter/node/binds"
	"lighter/node/trees"
	"lighter/store/disk"
)

// ImageDetail is everything that a node knows of one image.
type ImageDetail struct {
	ImageStatus
	Mount     *MountStatus  `json:"mount,omitempty"` // nil: its tree is not mounted
	Content   trees.Content `json:"content"`         // how much is cached; zeros: its tree is not on this machine
	Snapshots []string      `json:"snapshots"`       // active snapshots and views on top of it, mostly containers'
	Binds     []binds.Bind  `json:"binds"`
	Local     int64         `json:"localDeviceBytes"`     // size of its local device on the disk; 0: it has none
	Completes string        `json:"completion,omitempty"` // progress of completion, or why there is none
	Lost      string        `json:"lost,omitempty"`       // why its tree was not recovered, or how it is damaged
	Refused   string        `json:"refused,omitempty"`    // why its statement is refused, and what to do
	Pin       *disk.Pin     `json:"pin,omitempty"`        // nil: it is not pinned
	NoCache   string        `json:"noCache,omitempty"`    // why the cache is not used now
}

// ErrNoImage says that a word names no image on this machine.
var ErrNoImage = errors.New("no such image on this machine")

// Images returns the images that a word names. A word is a reference, the part of a reference after
// one of its slashes, a chainID, a tree ID, or at least minDigits first digits of such an ID. If no
// image matches, the error wraps ErrNoImage.
func (r *Reporter) Images(ctx context.Context, word string) ([]ImageDetail, error) {
	s, err := r.Status(ctx)
	if err != nil {
		return nil, err
	}
	var details []ImageDetail
	var names []string
	pins := r.Cache.Pins()
	for _, image := range s.images() {
		if !image.is(word) {
			names = append(names, cmp.Or(image.Image, image.Chain))
			continue
		}
		d := s.detail(image, pins)
		if !image.Tree.IsZero() {
			d.Local, _ = r.Trees.HasLocal(image.Tree)
			if d.Content, err = r.Trees.Content(ctx, image.Tree, r.Cache.Has); err != nil {
				return nil, fmt.Errorf("count the chunks of tree %s: %w", image.Tree.Short(), err)
			}
		}
		details = append(details, d)
	}
	if details == nil {
		return nil, noImage(word, names)
	}
	return details, r.addUsers(ctx, details)
}

// FindTree returns the tree that a word names, as in Images, and a label: the image's reference, or
// the word if the image has none. It fails if the word names several trees.
func (r *Reporter) FindTree(ctx context.Context, word string) (tree chunk.ID, label string, err error) {
	s, err := r.Status(ctx)
	if err != nil {
		return tree, "", err
	}
	cached := r.cachedTrees() // the status of a bind may have no tree
	var names []string
	known := false
	for _, image := range s.images() {
		found := cached[image.Chain]
		if !found.IsZero() {
			names = append(names, cmp.Or(image.Image, image.Chain))
		}
		if image.Tree = found; !image.is(word) {
			continue
		}
		known = true
		switch {
		case found.IsZero():
		case tree.IsZero():
			tree, label = found, image.Image
		case tree != found:
			return chunk.ID{}, "", fmt.Errorf("%q names several images with different trees: use a longer name", word)
		default:
			label = cmp.Or(label, image.Image)
		}
	}
	switch {
	case !tree.IsZero():
		return tree, cmp.Or(label, word), nil
	case known:
		return tree, "", fmt.Errorf("the tree of %q is not on this machine, so nothing of the image is cached; "+
			"images whose trees are on this machine: %s", word, list(names))
	}
	return tree, "", noImage(word, names)
}

// FindPin returns the pinned tree that a word names, even if the image was removed.
func (r *Reporter) FindPin(ctx context.Context, word string, pins []disk.Pin) (chunk.ID, error) {
	var tree chunk.ID
	var labels []string
	for _, p := range pins {
		if pinned := (ImageStatus{Image: p.Label, Tree: p.ID}); pinned.is(word) {
			tree = p.ID
		}
		labels = append(labels, p.Label)
	}
	if tree.IsZero() {
		var err error
		if tree, _, err = r.FindTree(ctx, word); err != nil && !errors.Is(err, ErrNoImage) {
			return tree, err
		}
	}
	if !slices.ContainsFunc(pins, func(p disk.Pin) bool { return p.ID == tree }) {
		return tree, fmt.Errorf("%q is not pinned; pinned images: %s", word, list(labels))
	}
	return tree, nil
}

// noImage returns the error for a word that names no image.
func noImage(word string, names []string) error {
	return fmt.Errorf("%q: %w; images on this machine: %s", word, ErrNoImage, list(names))
}

// list returns the first names and the number of further names, as text for an error.
func list(names []string) string {
	const most = 20
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > most:
		return strings.Join(names[:most], ", ") + fmt.Sprintf(", and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// images returns the pulled images, and the images of binds that were not pulled.
func (s *Status) images() []ImageStatus {
	all := slices.Clone(s.Images)
	for _, b := range s.Binds {
		if slices.ContainsFunc(all, func(i ImageStatus) bool { return i.Chain == b.Chain }) {
			continue
		}
		image := ImageStatus{Chain: b.Chain, Image: b.Name, Lazy: true, Why: "it is mounted without containerd"}
		for _, m := range s.Mounts {
			if slices.Contains(m.Chains, b.Chain) {
				image.Tree, image.Source = m.Tree, m.Source
			}
		}
		all = append(all, image)
	}
	return all
}

// minDigits is how many first digits of an ID are needed to name an image.
const minDigits = 6

// is reports whether a word names the image.
func (i *ImageStatus) is(word string) bool {
	if word == "" {
		return false
	}
	if i.Image == word || strings.HasSuffix(i.Image, "/"+word) {
		return true
	}
	hex := strings.TrimPrefix(word, "sha256:")
	if len(hex) < minDigits {
		return false
	}
	return strings.HasPrefix(strings.TrimPrefix(i.Chain, "sha256:"), hex) ||
		!i.Tree.IsZero() && strings.HasPrefix(i.Tree.String(), hex)
}

// detail returns what the status and the pins say about an image.
func (s *Status) detail(image ImageStatus, pins []disk.Pin) ImageDetail {
	d := ImageDetail{ImageStatus: image, Snapshots: []string{}, Binds: []binds.Bind{}, NoCache: s.Cache.Off()}
	for _, p := range pins {
		if p.ID == image.Tree {
			d.Pin = &p
		}
	}
	for _, m := range s.Mounts {
		if m.Tree == image.Tree && !image.Tree.IsZero() {
			d.Mount = &m
			d.Completes = s.Completion.Of(m.Tree)
		}
	}
	for _, b := range s.Binds {
		if b.Chain == image.Chain {
			d.Binds = append(d.Binds, b)
		}
	}
	for _, l := range s.Lost {
		if l.Tree == image.Tree {
			d.Lost = l.Cause
		}
	}
	for _, r := range s.Refused {
		if r.Chain == image.Chain {
			d.Refused = r.Cause + ": " + r.Repair
		}
	}
	return d
}

// addUsers adds the snapshots on top of each image.
func (r *Reporter) addUsers(ctx context.Context, details []ImageDetail) error {
	users, err := r.Snapshots.Users(ctx)
	if err != nil {
		return err
	}
	for i := range details {
		if snapshots := users[details[i].Chain]; snapshots != nil {
			slices.Sort(snapshots)
			details[i].Snapshots = snapshots
		}
	}
	return nil
}
