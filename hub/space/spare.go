package space

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"lighter/sleep"
)

const (
	// The spare file has 1/spareShare as many bytes as the reserve. It is given up in spareParts,
	// so that a program that goes on filling the disk does not get all of them at once.
	spareShare = 16
	spareParts = 8
	// spareEvery is the interval in which Run makes the file whole again.
	spareEvery = time.Minute
)

// Spare is a file whose bytes the hub frees when the disk is full. An SQLite database needs free
// bytes even to delete rows. Without the file, nothing could be removed from a hub whose disk is
// full. A Spare is safe for concurrent use.
type Spare struct {
	path    string
	reserve *Reserve
	log     *slog.Logger

	mu sync.Mutex // held while the file changes
}

// OpenSpare returns the spare file of a reserve, which need not exist. If the disk has less free
// bytes than a part of the file has, OpenSpare gives up a part.
func OpenSpare(path string, r *Reserve, log *slog.Logger) *Spare {
	s := &Spare{path: path, reserve: r, log: log}
	if low := (*LowError)(nil); errors.As(r.check(s.size()/spareParts), &low) {
		s.GiveUp()
	}
	return s
}

// size returns the bytes of the whole file.
func (s *Spare) size() int64 { return s.reserve.bytes / spareShare }

// GiveUp frees a part of the file. It reports whether any bytes were freed.
func (s *Spare) GiveUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(s.path)
	if err != nil || info.Size() == 0 {
		return false
	}
	left := max(info.Size()-max(s.size()/spareParts, 1), 0)
	if err := os.Truncate(s.path, left); err != nil {
		s.log.Error("cannot give up spare bytes", "path", s.path, "err", err)
		return false
	}
	s.log.Warn("the disk is full: spare bytes were given up, so that images can be removed", "path", s.path,
		"bytes", info.Size()-left, "left", left)
	return true
}

// Run makes the file whole whenever there is room, until ctx ends.
func (s *Spare) Run(ctx context.Context) error {
	for logged := ""; ; {
		if err := s.fill(); err != nil && err.Error() != logged {
			logged = err.Error() // logged once: the file system may not support Fallocate
			s.log.Warn("cannot reserve spare bytes for a full disk", "path", s.path, "err", err)
		}
		if !sleep.For(ctx, spareEvery) {
			return ctx.Err()
		}
	}
}

// fill makes the file whole if the free bytes suffice for the whole file and the reserve. It
// shortens a longer file. Without a reserve it removes the file.
func (s *Spare) fill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := s.size()
	info, err := os.Stat(s.path)
	switch {
	case size == 0:
		if err := os.Remove(s.path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	case err == nil && info.Size() >= size:
		return os.Truncate(s.path, size)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case s.reserve.check(s.reserve.bytes+size) != nil:
		return nil
	}
	file, err := os.OpenFile(s.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fallocate(int(file.Fd()), 0, 0, size), file.Close())
}
