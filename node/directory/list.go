package directory

import (
	"cmp"
	"path/filepath"
	"slices"
	"sync"

	"lighter/durable"
)

// key names an image with what the name stood for when it was looked into: a name may get another
// image.
type key struct {
	name string
	target
}

// list is the list, on the disk, of the images whose chains the directory holds, and of where the
// directory is. The next daemon reads it before it removes trees that nobody holds.
type list struct {
	// file is incomplete if the file of a previous daemon could not be read: then any tree may be
	// used.
	file *durable.State[stored]

	mu     sync.Mutex // guards what follows, and the file
	dir    string     // where a directory is mounted, or was when a daemon was killed; empty: nowhere
	images []key      // sorted
}

// stored is the file.
type stored struct {
	Dir    string        `json:"dir,omitempty"`
	Images []storedImage `json:"images"`
}

type storedImage struct {
	Name  string `json:"name"`
	Chain string `json:"chain"`
	// Manifest is empty in files of earlier versions.
	Manifest string `json:"manifest,omitempty"`
}

// openList reads the list. If the file cannot be read, the list is empty.
func openList(root, name string, leftovers *durable.Leftovers) *list {
	file, s := durable.OpenState[stored](durable.StateFile{Path: filepath.Join(root, name),
		Name: "the list of images in the directory of images",
		Broken: "while this file exists, no tree is removed that was there when the node started; " +
			"end the processes that use the directory, and remove the file"}, leftovers)
	l := &list{file: file, dir: s.Dir}
	for _, i := range s.Images {
		l.images = append(l.images, key{i.Name, target{i.Chain, i.Manifest}})
	}
	l.images = slices.Compact(l.images)
	return l
}

// set changes where the directory is.
func (l *list) set(dir string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dir = dir
	return l.save()
}

// add adds an image. An image that cannot be saved is not added.
func (l *list) add(k key) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.images
	l.images = append(slices.Clone(l.images), k)
	err := l.save()
	if err != nil {
		l.images = before
	}
	return err
}

// remove removes an image once: it may have been added again since it was given up. A list that
// cannot be saved becomes a leftover: the next daemon holds an image that nobody uses.
func (l *list) remove(k key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := slices.Index(l.images, k); n >= 0 {
		l.images = slices.Delete(slices.Clone(l.images), n, n+1)
	}
	_ = l.save()
}

// save writes the file. l.mu is held.
func (l *list) save() error {
	slices.SortFunc(l.images, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.chain, b.chain), cmp.Compare(a.manifest, b.manifest))
	})
	s := stored{Dir: l.dir, Images: []storedImage{}}
	for _, k := range l.images {
		s.Images = append(s.Images, storedImage{k.name, k.chain, k.manifest})
	}
	return l.file.Save(s)
}
