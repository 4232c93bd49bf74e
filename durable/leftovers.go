package durable

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
)

// Leftover is a path that could not be cleaned up or written. No operation waits for it. The next
// cleanup of the same path tries again.
type Leftover struct {
	Path  string `json:"path"`
	Cause string `json:"cause"`
}

// Leftovers lists the paths that could not be cleaned up. Cleaning up never fails: each leftover
// is logged once and listed until it is gone. The zero value logs nothing. It is safe for
// concurrent use.
type Leftovers struct {
	Log *slog.Logger // nil: none

	mu     sync.Mutex // guards causes
	causes map[string]string
}

// Remove deletes a file, or a directory with everything below it.
func (l *Leftovers) Remove(path string) {
	l.Note(path, os.RemoveAll(path))
}

// Note lists a path with the error that occurred there, or removes it from the list if err is nil.
func (l *Leftovers) Note(path string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		delete(l.causes, path)
		return
	}
	if _, known := l.causes[path]; !known && l.Log != nil {
		l.Log.Warn("cannot clean up a path", "path", path, "err", err)
	}
	if l.causes == nil {
		l.causes = map[string]string{}
	}
	l.causes[path] = err.Error()
}

// List returns the leftovers that still exist, sorted by path.
func (l *Leftovers) List() []Leftover {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]Leftover, 0, len(l.causes))
	for path, cause := range l.causes {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			delete(l.causes, path) // removed by someone else
			continue
		}
		all = append(all, Leftover{path, cause})
	}
	slices.SortFunc(all, func(a, b Leftover) int { return strings.Compare(a.Path, b.Path) })
	return all
}
