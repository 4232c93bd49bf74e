package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lighter/format/chunk"
	"lighter/node/trees"
	"lighter/store/disk"
)

// ImageDetail is all that a node says of one image.
type ImageDetail struct {
	ImageStatus
	Mount     *MountStatus  `json:"mount,omitempty"` // if its tree is mounted
	Content   trees.Content `json:"content"`         // how much of it is here, if its tree is
	Snapshots []string      `json:"snapshots"`       // active ones and views that stand on it: containers
	Binds     []Bind        `json:"binds"`
	Local     int64         `json:"localDeviceBytes"`     // what its local device takes of the disk, if it has one
	Completes string        `json:"completion,omitempty"` // how far completing it is, if it is its turn, or why it is nobody's
	Lost      string        `json:"lost,omitempty"`       // why it could not be brought back, or how it is damaged
	Refused   string        `json:"refused,omitempty"`    // why its statement on the disk cannot be verified, and what to do
	Pin       *disk.Pin     `json:"pin,omitempty"`        // if it is pinned
	NoCache   string        `json:"noCache,omitempty"`    // why the cache is left alone now
}

// errNoImage says that no image here has that name.
var errNoImage = errors.New("there is no such image here")

// Images says all of the images that a word stands for: a reference or the end of
// one, a chain or a tree, or what they begin with.
func (n *Node) Images(ctx context.Context, word string) ([]ImageDetail, error) {
	s, err := n.Status(ctx)
	if err != nil {
		return nil, err
	}
	var details []ImageDetail
	var names []string
	pins := n.cache.Pins()
	for _, image := range s.known() {
		if !image.is(word) {
			names = append(names, cmp.Or(image.Image, image.Chain))
			continue
		}
		d := s.detail(image, pins)
		if !image.Tree.IsZero() {
			d.Local, _ = n.trees.HasLocal(image.Tree)
			if d.Content, err = n.trees.Content(ctx, image.Tree, n.cache.Has); err != nil {
				return nil, fmt.Errorf("count the chunks of tree %s: %w", image.Tree.Short(), err)
			}
		}
		details = append(details, d)
	}
	if details == nil {
		return nil, noImage(word, names)
	}
	return details, n.addUsers(ctx, details)
}

// noImage is the error for a word that stands for none of what there is.
func noImage(word string, names []string) error {
	return fmt.Errorf("%q: %w; there are: %s", word, errNoImage, listed(names))
}

// known lists the images, and what is mounted for people and is none of them.
func (s *Status) known() []ImageStatus {
	known := slices.Clone(s.Images)
	for _, b := range s.Binds {
		if slices.ContainsFunc(known, func(i ImageStatus) bool { return i.Chain == b.Chain }) {
			continue
		}
		image := ImageStatus{Chain: b.Chain, Image: b.Name, Lazy: true, Why: "it is mounted without containerd"}
		for _, m := range s.Mounts {
			if slices.Contains(m.Chains, b.Chain) {
				image.Tree = m.Tree
			}
		}
		known = append(known, image)
	}
	return known
}

// minWord is how many digits of an ID people have to give.
const minWord = 6

// is tells whether a word stands for the image.
func (i *ImageStatus) is(word string) bool {
	if word == "" {
		return false
	}
	if i.Image == word || strings.HasSuffix(i.Image, "/"+word) {
		return true
	}
	hex := strings.TrimPrefix(word, "sha256:")
	if len(hex) < minWord {
		return false
	}
	return strings.HasPrefix(strings.TrimPrefix(i.Chain, "sha256:"), hex) || !i.Tree.IsZero() && strings.HasPrefix(i.Tree.String(), hex)
}

// detail puts together what the status, and the pins, have of an image.
func (s *Status) detail(image ImageStatus, pins []disk.Pin) ImageDetail {
	d := ImageDetail{ImageStatus: image, Snapshots: []string{}, Binds: []Bind{}, NoCache: s.Cache.Off()}
	for _, p := range pins {
		if p.ID == image.Tree {
			d.Pin = &p
		}
	}
	for _, m := range s.Mounts {
		if m.Tree == image.Tree && image.Tree != (chunk.ID{}) {
			d.Mount = &m
			d.Completes = s.Completion.of(m.Tree)
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
			d.Refused = r.Cause + ": " + r.Mend
		}
	}
	return d
}

// addUsers adds the snapshots that stand on each image.
func (n *Node) addUsers(ctx context.Context, details []ImageDetail) error {
	if n.snapshot == nil {
		return nil
	}
	users, err := n.snapshot.Users(ctx)
	if err != nil {
		return err
	}
	for i := range details {
		if on := users[details[i].Chain]; on != nil {
			slices.SortFunc(on, cmp.Compare[string])
			details[i].Snapshots = on
		}
	}
	return nil
}
