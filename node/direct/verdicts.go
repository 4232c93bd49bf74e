package direct

import (
	"crypto/ed25519"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/index"
)

// maxVerdicts bounds the verdicts that are kept. Each has about 300 bytes.
const maxVerdicts = 16_384

// claim is what an image says about one of its layers: its blob, its diffID, and the sum of what
// its table says (audit.Sum).
type claim struct {
	Blob   digest.Digest `json:"blob"`
	DiffID digest.Digest `json:"diffID"`
	Table  chunk.ID      `json:"table"`
}

// verdict is what this node has found about a claim, by reading the layer.
type verdict struct {
	claim
	Place place     `json:"place"`           // where the layer was read
	At    time.Time `json:"at"`              //
	Wrong string    `json:"wrong,omitempty"` // in what the layer differs from the claim; empty: in nothing
}

// verdicts remembers what was found, also after a restart. It is safe for concurrent use.
type verdicts struct {
	saving sync.Mutex // held to change the following
	state  *durable.State[[]verdict]

	mu  sync.Mutex // guards the following, and is never held while the disk is written
	all []verdict  // the oldest first
	by  map[claim]verdict
}

func openVerdicts(dir string, left *durable.Leftovers) *verdicts {
	v := &verdicts{by: map[claim]verdict{}}
	v.state, v.all = durable.OpenState[[]verdict](durable.StateFile{
		Path: filepath.Join(dir, "verified"), Name: "the list of verified layers",
		Broken: "the node verifies the layers of its direct images again; remove it then",
	}, left)
	for _, one := range v.all {
		v.by[one.claim] = one
	}
	return v
}

// of returns the verdict about a claim, if there is one.
func (v *verdicts) of(c claim) (found verdict, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	found, known = v.by[c]
	return found, known
}

// add adds verdicts, which count even if they cannot be saved. If there are too many, the oldest
// ones that say nothing wrong are forgotten.
func (v *verdicts) add(some ...verdict) error {
	v.saving.Lock()
	defer v.saving.Unlock()
	return v.state.Save(v.insert(some...))
}

func (v *verdicts) insert(some ...verdict) (all []verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range some {
		if _, known := v.by[one.claim]; known { // another image has the layer, too
			continue
		}
		if len(v.all) >= maxVerdicts {
			i := max(0, slices.IndexFunc(v.all, func(old verdict) bool { return old.Wrong == "" }))
			delete(v.by, v.all[i].claim)
			v.all = slices.Delete(v.all, i, i+1)
		}
		v.all = append(v.all, one)
		v.by[one.claim] = one
	}
	return slices.Clone(v.all)
}

// A wrongError says why an image's tree is not used: this node has found that a layer differs from
// its table or from the image's config.
type wrongError struct{ verdict }

func (e wrongError) Error() string {
	return fmt.Sprintf("layer %s of manifest %s in %s was read, and %s", e.Blob, e.Place.Manifest, e.Place.Repository,
		e.Wrong)
}

// check returns a wrongError if one of the claims is known to be wrong. unknown are those about
// which nothing is known.
func (v *verdicts) check(claims []claim) (unknown int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range claims {
		found, known := v.by[c]
		switch {
		case !known:
			unknown++
		case found.Wrong != "":
			err = wrongError{found}
		}
	}
	return unknown, err
}

// claims returns what the tables of an image say about its layers. There are none if its format has
// no tables that have to be verified.
func (im *image) claims() []claim {
	var all []claim
	for i, table := range im.Tables {
		all = append(all, claim{im.Layers[i].Digest, im.DiffIDs[i], table})
	}
	return all
}

// images returns the images of the trees that were made here.
func (k *kept) images() map[chunk.ID]image {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[chunk.ID]image{}
	for id, t := range k.trees {
		all[id] = t.image
	}
	return all
}

// Wrong returns the trees that must never be mounted, and why: a layer differs from what its table
// said when the tree was made.
func (m *Images) Wrong() map[chunk.ID]error {
	wrong := map[chunk.ID]error{}
	for tree, im := range m.kept.images() {
		if _, err := m.verdicts.check(im.claims()); err != nil {
			wrong[tree] = err
		}
	}
	return wrong
}

// isRight reports whether no layer of an image is known to differ from its table, and whether the
// key that has signed its index is still believed.
func (m *Images) isRight(im *image) bool {
	_, wrong := m.verdicts.check(im.claims())
	isIt := func(key ed25519.PublicKey) bool { return index.FormatKey(key) == im.By }
	return wrong == nil && (im.By == "" || slices.ContainsFunc(m.config.Keys, isIt))
}

// replaces reports whether an image, which may start, is why its tree is believed from now on,
// instead of another image with the same tree: because the old one's key does not count any more,
// or because a signed index needs no layers to be read. A tree that is known to be wrong stays so.
func (m *Images) replaces(im, old *image) bool {
	if old.By != "" || im.By == "" {
		return old.By != "" && !m.isRight(old)
	}
	return m.isRight(old)
}

// Refused returns why a tree must never be mounted, or nil.
func (m *Images) Refused(tree chunk.ID) error { return m.Wrong()[tree] }

// has reports whether something is known about a layer, whatever its table.
func (v *verdicts) has(blob, diffID digest.Digest) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.ContainsFunc(v.all, func(one verdict) bool { return one.Blob == blob && one.DiffID == diffID })
}
