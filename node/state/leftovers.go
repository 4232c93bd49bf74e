package state

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
)

// Leftover is something below a node's root that could not be put in order. Nothing
// waits for it, and it is tried again when its place is cleaned up the next time.
type Leftover struct {
	Path  string `json:"path"`
	Cause string `json:"cause"`
}

// Leftovers are what cleaning up had to leave. Cleaning up never fails: each leftover is
// logged once and listed until it is gone. The zero value is ready for use, by any
// number of goroutines.
type Leftovers struct {
	mu     sync.Mutex // guards causes
	causes map[string]string
}

// Remove deletes a file, or a directory with all below it.
func (l *Leftovers) Remove(path string) {
	l.Note(path, os.RemoveAll(path))
}

// Note lists a path with what went wrong there, or takes it from the list if err is nil.
func (l *Leftovers) Note(path string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		delete(l.causes, path)
		return
	}
	if _, known := l.causes[path]; !known {
		slog.Warn("something is left that cannot be cleaned up", "path", path, "err", err)
	}
	if l.causes == nil {
		l.causes = map[string]string{}
	}
	l.causes[path] = err.Error()
}

// List returns the leftovers that are still there, by path.
func (l *Leftovers) List() []Leftover {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]Leftover, 0, len(l.causes))
	for path, cause := range l.causes {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			delete(l.causes, path) // somebody has removed it
			continue
		}
		all = append(all, Leftover{path, cause})
	}
	slices.SortFunc(all, func(a, b Leftover) int { return strings.Compare(a.Path, b.Path) })
	return all
}
