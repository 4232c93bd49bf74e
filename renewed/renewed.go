// Package renewed promises values that are read from files, as the files are now: a
// certificate that is renewed on the disk is used without a restart.
//
// It looks at the files when somebody asks for the value, every few seconds at most. Files
// that cannot be read or make no value leave the value as it was, and are logged once. A
// disk that does not answer delays one caller by a second.
package renewed

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

const (
	// interval is how often files are looked at, at most.
	interval = 2 * time.Second
	// patience is how long a caller waits for the disk.
	patience = time.Second
)

// Value is a value of files. It is safe for concurrent use.
type Value[T any] struct {
	files []string
	read  func() (T, error)
	log   *slog.Logger

	mu      sync.Mutex // guards what follows
	value   T
	seen    []os.FileInfo // of the files that value is of
	checked time.Time
	busy    bool // somebody looks at the files
	broken  bool // the files that are there now make no value
}

// Read reads a value from files for the first time. read is called again when they have
// changed, by one goroutine at a time.
func Read[T any](log *slog.Logger, read func() (T, error), files ...string) (*Value[T], error) {
	v := &Value[T]{files: files, read: read, log: log, checked: time.Now()}
	var err error
	if v.seen, err = v.stat(); err != nil {
		return nil, err
	}
	if v.value, err = read(); err != nil {
		return nil, err
	}
	return v, nil
}

// Get returns the value. It looks at the files if nobody has for some seconds, and waits
// for that until ctx is done.
func (v *Value[T]) Get(ctx context.Context) T {
	v.mu.Lock()
	if look := !v.busy && time.Since(v.checked) >= interval; look {
		v.busy = true
		done := make(chan struct{})
		go func() {
			defer close(done)
			v.renew()
		}()
		v.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		case <-time.After(patience):
		}
		v.mu.Lock()
	}
	defer v.mu.Unlock()
	return v.value
}

// renew reads the value again if the files have changed. It is called by one at a time.
func (v *Value[T]) renew() {
	v.mu.Lock()
	seen, broken := v.seen, v.broken
	v.mu.Unlock()
	var value T
	now, err := v.stat()
	changed := err != nil || broken || !same(seen, now)
	if changed && err == nil {
		value, err = v.read()
	}
	switch {
	case err != nil && !broken:
		v.log.Error("files have changed and cannot be used; what they held before stays in use", "files", v.files, "cause", err)
	case changed && err == nil:
		v.log.Info("files have been renewed and are used from now on", "files", v.files)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.busy, v.checked, v.broken = false, time.Now(), err != nil
	if changed && err == nil {
		v.value, v.seen = value, now
	}
}

func (v *Value[T]) stat() (all []os.FileInfo, err error) {
	for _, file := range v.files {
		info, err := os.Stat(file)
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", file, err)
		}
		all = append(all, info)
	}
	return all, nil
}

// same reports whether the files are those that were there, and unchanged.
func same(before, now []os.FileInfo) bool {
	for i, b := range before {
		if n := now[i]; !os.SameFile(b, n) || b.Size() != n.Size() || !b.ModTime().Equal(n.ModTime()) {
			return false
		}
	}
	return true
}
