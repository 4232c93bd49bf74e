package binds

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"lighter/durable"
)

// list is the list of binds, in memory and in a file, which the next daemon reads.
type list struct {
	// file is incomplete if a previous daemon's file could not be read: then there may be binds
	// that are not in the list.
	file *durable.State[[]Bind]

	mu   sync.Mutex      // guards dirs, and the file
	dirs map[string]Bind // by directory
}

// openList reads the list. If the file cannot be read, the list is empty.
func openList(root string, leftovers *durable.Leftovers) *list {
	file, binds := durable.OpenState[[]Bind](durable.StateFile{Path: filepath.Join(root, "binds.json"),
		Name: "the list of images mounted by lighter mount",
		Broken: "while this file exists, no tree is removed that was there when the node started; " +
			"unmount these images, and remove the file"}, leftovers)
	l := &list{file: file, dirs: map[string]Bind{}}
	for _, b := range binds {
		l.dirs[b.Dir] = b
	}
	return l
}

// add adds a bind. It fails if the list has a bind at the same directory, or cannot be saved.
func (l *list) add(b Bind) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, taken := l.dirs[b.Dir]; taken {
		return ErrTaken(b.Dir)
	}
	l.dirs[b.Dir] = b
	if err := l.save(); err != nil {
		delete(l.dirs, b.Dir)
		return err
	}
	return nil
}

// replace changes a bind. A change that cannot be saved does no harm, because the next daemon tries
// to mount the bind again.
func (l *list) replace(b Bind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dirs[b.Dir] = b
	_ = l.save() // save adds a failure to the leftovers
}

func (l *list) remove(dir string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.dirs, dir)
	return l.save()
}

// save writes the file. l.mu is held.
func (l *list) save() error { return l.file.Save(l.sorted()) }

func (l *list) get(dir string) (Bind, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.dirs[dir]
	return b, ok
}

func (l *list) all() []Bind {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sorted()
}

// sorted returns the binds by directory. l.mu is held.
func (l *list) sorted() []Bind {
	all := slices.AppendSeq([]Bind{}, maps.Values(l.dirs))
	slices.SortFunc(all, func(a, b Bind) int { return cmp.Compare(a.Dir, b.Dir) })
	return all
}
