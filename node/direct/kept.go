package direct

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/durable"
	"lighter/format/attached"
	"lighter/format/chunk"
	"lighter/format/guess"
	"lighter/format/layer"
	"lighter/format/pack"
	"lighter/store"
)

const (
	newPrefix, removePrefix = "new-", "rm-"
	// graceTime is how long a tree that was made may wait until the node fetches its index.
	graceTime = time.Hour
	// maxImageFile bounds the file image, in bytes.
	maxImageFile = 16 << 20
	// maxPlaces bounds the places of an image that are kept.
	maxPlaces = 16
)

// image is what is kept of an image: the file image.
type image struct {
	Places  []place         `json:"places"`          // where it was pulled from, the first one first
	DiffIDs []digest.Digest `json:"diffIDs"`         // of the layers
	Layers  []v1.Descriptor `json:"layers"`          // the lowest first
	Format  string          `json:"format"`          // the word of the format that the tables had
	Tables  []chunk.ID      `json:"tables"`          // the sums of what the tables of the layers say
	First   []firstPack     `json:"first,omitempty"` // the units of layers that a start reads
	Packs   []attached.Pack `json:"packs,omitempty"`
	PacksIn string          `json:"packsIn,omitempty"` // the repository of the startup packs
	By      string          `json:"by,omitempty"`      // the key that has signed the index
	// Config says how the image starts. Nil: an earlier version has kept the image.
	Config *guess.Config `json:"config,omitempty"`
}

// place is an image in a registry.
type place struct {
	Repository string        `json:"repository"` // HOST[:PORT]/PATH
	Manifest   digest.Digest `json:"manifest"`
	Lower      bool          `json:"lower,omitempty"` // the layers are some of the lower ones of this image
}

// kept has the trees that were made on this machine, and the tables of their layers. It is safe for
// concurrent use.
type kept struct {
	dir  string
	left *durable.Leftovers

	changing sync.Mutex // held while directories are published and removed

	mu    sync.Mutex // guards the following
	trees map[chunk.ID]*keptTree
	packs map[chunk.ID][]*keptLayer // by keptLayer.pack
}

type keptTree struct {
	image
	layers []*keptLayer // and startup packs
	made   time.Time
	places func() ([]layer.Places, error) // of the layers
}

// keptLayer is a layer of one tree, its first units, or a startup pack.
type keptLayer struct {
	of         *keptTree
	descriptor v1.Descriptor
	pack       chunk.ID       // the digest of the blob, or of the table of a layer's first units
	startup    *attached.Pack // nil: a layer, which has the following
	file       *os.File
	table      *layer.Table
}

// openKept opens what an earlier daemon has kept. A tree that cannot be read stays: it may be
// mounted, and the cause may go away. It is replaced when it is made again.
func openKept(dir string, left *durable.Leftovers) (*kept, error) {
	if err := durable.MkdirAll(dir); err != nil {
		return nil, err
	}
	k := &kept{dir: dir, left: left, trees: map[chunk.ID]*keptTree{}, packs: map[chunk.ID][]*keptLayer{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		id, err := chunk.ParseID(e.Name())
		switch {
		case err == nil:
			if err := k.open(id); err != nil {
				left.Log.Error("a tree that was made here cannot be read: chunks that are not cached are lost until "+
					"its image is pulled again", "tree", id.Short(), "err", err)
			}
		case strings.HasPrefix(e.Name(), newPrefix), strings.HasPrefix(e.Name(), removePrefix):
			left.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return k, nil
}

func (k *kept) path(tree chunk.ID, name string) string {
	return filepath.Join(k.dir, tree.String(), name)
}

// open opens the tree in its directory.
func (k *kept) open(id chunk.ID) error {
	t := &keptTree{made: time.Now()}
	b, err := os.ReadFile(k.path(id, "image"))
	if err == nil && len(b) > maxImageFile {
		err = errors.New("the file is too long")
	}
	if err == nil {
		err = json.Unmarshal(b, &t.image)
	}
	if err == nil && (len(t.Places) == 0 || len(t.Layers) != len(t.DiffIDs) ||
		len(t.Tables) > 0 && len(t.Layers) != len(t.Tables)) {
		err = errors.New("the file lacks places, diffIDs or tables")
	}
	n := len(t.Layers)
	t.places = sync.OnceValues(func() ([]layer.Places, error) { return readPlaces(t.layers[:n]) })
	if err == nil {
		err = t.openLayers(filepath.Join(k.dir, id.String()))
	}
	if err != nil {
		t.close()
		return fmt.Errorf("open tree %s: %w", id.Short(), err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trees[id] = t
	for _, l := range t.layers { // they are read next
		k.packs[l.pack] = slices.Concat([]*keptLayer{l}, k.packs[l.pack])
	}
	return nil
}

// openLayers opens the tables in the tree's directory.
func (t *keptTree) openLayers(dir string) error {
	for i, d := range t.Layers {
		l, err := openLayer(tablePath(dir, i), d)
		if err != nil {
			return err
		}
		l.of = t
		t.layers = append(t.layers, l)
	}
	for _, f := range t.First {
		if f.Layer < 0 || f.Layer >= len(t.Layers) {
			return fmt.Errorf("the first units of layer %d of %d", f.Layer, len(t.Layers))
		}
		l, err := openLayer(filepath.Join(dir, f.Pack.String()), t.Layers[f.Layer])
		if err != nil {
			return err
		}
		l.of, l.pack = t, f.Pack
		t.layers = append(t.layers, l)
	}
	for i := range t.Packs {
		l := &keptLayer{of: t, descriptor: t.Packs[i].Blob, startup: &t.Packs[i]}
		var err error
		if l.pack, err = packOf(l.descriptor); err != nil {
			return err
		}
		t.layers = append(t.layers, l)
	}
	return nil
}

// openLayer opens the table of a layer, or of its first units.
func openLayer(path string, d v1.Descriptor) (*keptLayer, error) {
	pack, err := packOf(d)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	l := &keptLayer{descriptor: d, pack: pack, file: file}
	info, err := file.Stat()
	if err == nil {
		l.table, err = layer.OpenTable(file, info.Size())
	}
	if err == nil {
		if blob, size := l.table.Blob(); blob != pack || size != d.Size {
			err = fmt.Errorf("the table is of blob %s with %d bytes", blob.Short(), size)
		}
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return l, nil
}

// packOf returns the pack that a layer's blob is.
func packOf(d v1.Descriptor) (chunk.ID, error) {
	text, found := strings.CutPrefix(string(d.Digest), "sha256:")
	if !found {
		return chunk.ID{}, fmt.Errorf("the layer's digest %q is not a SHA-256", d.Digest)
	}
	return chunk.ParseID(text)
}

func (t *keptTree) close() {
	for _, l := range t.layers {
		if l.file != nil {
			l.file.Close() // was only read
		}
	}
}

// has reports whether a tree was made here.
func (k *kept) has(tree chunk.ID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.trees[tree] != nil
}

// layersOf returns the layers whose blob is a pack, and what else is that pack: one for each tree
// that has it. The one that was added or preferred last comes first.
func (k *kept) layersOf(pack chunk.ID) []*keptLayer {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.packs[pack]
}

// prefer makes a layer the first one of its pack, unless its tree is gone.
func (k *kept) prefer(l *keptLayer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.packs[l.pack]
	if i := slices.Index(all, l); i > 0 {
		k.packs[l.pack] = slices.Concat([]*keptLayer{l}, all[:i], all[i+1:]) // readers have the old list
	}
}

// publish gives a finished directory its tree's name. If the tree is kept already, it gets the
// image's place instead, provided that its layers are the same. Formats may lead to the same tree:
// replaces reports whether the image's format counts from now on.
func (k *kept) publish(tree chunk.ID, fresh string, im image, replaces func(old *image) bool) error {
	if err := durable.SyncFiles(fresh); err != nil { // before the lock: a slow disk takes seconds
		return err
	}
	k.changing.Lock()
	defer k.changing.Unlock()
	if old := k.imageOf(tree); old != nil {
		k.left.Remove(fresh)
		isSame := func(a, b v1.Descriptor) bool { return a.Digest == b.Digest }
		if !slices.EqualFunc(old.Layers, im.Layers, isSame) {
			return nil
		}
		now := *old
		if now.Config == nil {
			now.Config = im.Config
		}
		if replaces(old) { // the files stay those of the old format
			now.Format, now.Tables, now.By = im.Format, im.Tables, im.By
		}
		if !slices.Contains(old.Places, im.Places[0]) && len(old.Places) < maxPlaces {
			now.Places = append(slices.Clone(old.Places), im.Places[0])
		}
		if now.Format == old.Format && now.By == old.By && len(now.Places) == len(old.Places) &&
			now.Config == old.Config {
			return nil
		}
		return k.change(tree, now)
	}
	if err := durable.Discard(k.path(tree, ""), k.removing(tree)); err != nil { // one that cannot be read
		return err
	}
	if err := durable.Publish(fresh, k.path(tree, "")); err != nil {
		return err
	}
	return k.open(tree)
}

// setConfig keeps the config of a tree's image, which was kept without it.
func (k *kept) setConfig(tree chunk.ID, config guess.Config) error {
	k.changing.Lock()
	defer k.changing.Unlock()
	im := k.imageOf(tree)
	if im == nil {
		return nil // it was removed meanwhile
	}
	im.Config = &config
	return k.change(tree, *im)
}

// change changes what is kept of a tree's image. changing is held.
func (k *kept) change(tree chunk.ID, im image) error {
	b, err := json.Marshal(im)
	if err == nil {
		err = durable.Replace(k.path(tree, "image"), b)
	}
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trees[tree].image = im
	return nil
}

func (k *kept) imageOf(tree chunk.ID) *image {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.trees[tree]
	if t == nil {
		return nil
	}
	t.made = time.Now() // so that it is not removed before the node fetches its index
	im := t.image
	return &im
}

// find returns the tree of an image that was made here, and the image. If there are several, any.
func (k *kept) find(is func(im *image) bool) (tree chunk.ID, im image, found bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, t := range k.trees {
		if is(&t.image) {
			t.made = time.Now()
			return id, t.image, true
		}
	}
	return chunk.ID{}, image{}, false
}

// repositories returns where a layer or a startup pack can be read.
func (k *kept) repositories(l *keptLayer) (all []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.startup != nil {
		return []string{l.of.PacksIn}
	}
	for _, p := range l.of.Places {
		all = append(all, p.Repository)
	}
	return all
}

// unit returns where unit n of a layer or of a startup pack is in its blob, in bytes, and what sets
// how an answer is decoded. The error wraps chunk.ErrNotFound if there is no such unit.
func (l *keptLayer) unit(n uint32) (offset, length int64, set func(*store.Answer), err error) {
	if l.startup != nil {
		offset, length, err = l.startup.Unit(n)
		return offset, length, func(a *store.Answer) {
			a.Decode = func(b []byte) (store.Batch, error) { return pack.DecodeUnit(b) }
		}, err
	}
	u, err := l.table.Unit(n)
	if err != nil {
		return 0, 0, nil, err
	}
	return u.Offset, u.Stored, func(a *store.Answer) {
		a.Decode = func(b []byte) (store.Batch, error) { return u.Decode(b) }
		if u.Codec != layer.Gzip && u.Codec != layer.Deflate {
			return // it is decoded only when it has arrived
		}
		a.DecodeArriving = func(b []byte, arrived func(int) (int, error)) (store.Batch, error) {
			return u.DecodeArriving(b, arrived)
		}
	}, nil
}

// sweep removes the trees that are not in list, the trees on this machine.
func (k *kept) sweep(list []chunk.ID) {
	k.changing.Lock()
	defer k.changing.Unlock()
	k.mu.Lock()
	var gone []chunk.ID
	for id, t := range k.trees {
		if !slices.Contains(list, id) && time.Since(t.made) > graceTime {
			gone = append(gone, id)
		}
	}
	k.mu.Unlock()
	for _, id := range gone {
		k.discard(id)
	}
}

func (k *kept) removing(tree chunk.ID) string {
	return filepath.Join(k.dir, removePrefix+tree.String())
}

// discard removes a tree. Reads of its units that run fail. changing is held.
func (k *kept) discard(id chunk.ID) {
	k.mu.Lock()
	if t := k.trees[id]; t != nil {
		delete(k.trees, id)
		for _, l := range t.layers {
			var others []*keptLayer
			for _, other := range k.packs[l.pack] {
				if other != l {
					others = append(others, other)
				}
			}
			if k.packs[l.pack] = others; len(others) == 0 {
				delete(k.packs, l.pack)
			}
		}
		t.close()
	}
	k.mu.Unlock()
	if err := durable.Discard(k.path(id, ""), k.removing(id)); err != nil {
		k.left.Log.Warn("a tree that was made here cannot be removed", "tree", id.Short(), "err", err)
	}
}

// close closes the tables.
func (k *kept) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.trees {
		t.close()
	}
}
