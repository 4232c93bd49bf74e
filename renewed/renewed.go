// Package renewed has values that follow the files they are read from: a certificate that is
// renewed on the disk is used without a restart.
//
// It checks the files when the value is used, every few seconds at most. If the files cannot be
// read, or have no valid value, the old value stays in use, and the failure is logged once. A disk
// that does not answer delays one caller by a second.
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
	interval = 2 * time.Second // between two checks of the files, at least
	timeout  = time.Second     // of a caller's wait for the disk
)

// Value is a value that is read from files. It is safe for concurrent use.
type Value[T any] struct {
	files []string
	read  func() (T, error)
	log   *slog.Logger

	mu      sync.Mutex // guards what follows
	value   T
	infos   []os.FileInfo // of the files, when value was read from them
	checked time.Time     // when the files were last checked
	busy    bool          // a goroutine checks the files
	broken  bool          // the current files have no valid value
}

// Read reads a value from files for the first time. When the files have changed, read is called
// again, by one goroutine at a time.
func Read[T any](log *slog.Logger, read func() (T, error), files ...string) (*Value[T], error) {
	v := &Value[T]{files: files, read: read, log: log, checked: time.Now()}
	var err error
	if v.infos, err = v.stat(); err != nil {
		return nil, err
	}
	if v.value, err = read(); err != nil {
		return nil, err
	}
	return v, nil
}

// Get returns the value. If the last check of the files is some seconds ago, it checks them, and
// waits for the result: for a second at most, or until ctx is done.
func (v *Value[T]) Get(ctx context.Context) T {
	v.mu.Lock()
	if !v.busy && time.Since(v.checked) >= interval {
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
		case <-time.After(timeout):
		}
		v.mu.Lock()
	}
	defer v.mu.Unlock()
	return v.value
}

// renew reads the value again if the files have changed. One goroutine calls it at a time.
func (v *Value[T]) renew() {
	v.mu.Lock()
	before, broken := v.infos, v.broken
	v.mu.Unlock()
	var value T
	now, err := v.stat()
	changed := err != nil || broken || !same(before, now)
	if changed && err == nil {
		value, err = v.read()
	}
	switch {
	case err != nil && !broken:
		v.log.Error("cannot use changed files: their previous contents stay in use", "files", v.files, "err", err)
	case changed && err == nil:
		v.log.Info("renewed files are in use", "files", v.files)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.busy, v.checked, v.broken = false, time.Now(), err != nil
	if changed && err == nil {
		v.value, v.infos = value, now
	}
}

func (v *Value[T]) stat() (all []os.FileInfo, err error) {
	for _, file := range v.files {
		info, err := os.Stat(file)
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", file, err)
		}
		all = append(all, info)
	}
	return all, nil
}

// same reports whether the files are the same as before, and unchanged.
func same(before, now []os.FileInfo) bool {
	for i, b := range before {
		if n := now[i]; !os.SameFile(b, n) || b.Size() != n.Size() || !b.ModTime().Equal(n.ModTime()) {
			return false
		}
	}
	return true
}
