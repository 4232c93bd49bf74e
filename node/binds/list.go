package binds

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"lighter/durable"
)

// brokenSuffix is added to the name of a list file that could not be read.
const brokenSuffix = ".broken"

// list is the list of binds, in memory and in a file, which the next daemon reads.
type list struct {
	path      string
	leftovers *durable.Leftovers
	// incomplete says that the file of a previous daemon could not be read, so there may be binds
	// that are not in the list.
	incomplete bool

	mu   sync.Mutex      // guards dirs, and the file
	dirs map[string]Bind // by directory
}

// openList reads the list. If the file cannot be read, openList renames it, and returns an empty
// list.
func openList(root string, leftovers *durable.Leftovers) *list {
	l := &list{path: filepath.Join(root, "binds.json"), leftovers: leftovers, dirs: map[string]Bind{}}
	text, err := os.ReadFile(l.path)
	var binds []Bind
	if err == nil {
		err = json.Unmarshal(text, &binds)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.incomplete, binds = true, nil
		leftovers.Note(l.path, errors.Join(err, os.Rename(l.path, l.path+brokenSuffix)))
	}
	if _, err := os.Lstat(l.path + brokenSuffix); err == nil {
		l.incomplete = true
		leftovers.Note(l.path+brokenSuffix, errors.New("the list of images mounted by lighter mount cannot be "+
			"read: while this file exists, no tree is removed that was there when the node started; "+
			"unmount these images, and remove the file"))
	}
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
func (l *list) save() error {
	text, err := json.Marshal(l.sorted())
	if err == nil {
		err = durable.Replace(l.path, text)
	}
	if err != nil {
		err = fmt.Errorf("save the list of images mounted by lighter mount: %w", err)
	}
	l.leftovers.Note(l.path, err)
	return err
}

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
