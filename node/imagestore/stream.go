package imagestore

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/node/directory"
)

// splitSuffix is the suffix of a file of tar-split, after a layer's ID.
const splitSuffix = ".tar-split.gz"

// HasFile implements directory.Links.
func (s *Store) HasFile(name string) bool {
	id, ok := strings.CutSuffix(name, splitSuffix)
	s.mu.Lock()
	defer s.mu.Unlock()
	return ok && s.list.chains[id] != ""
}

// stream is an open file of tar-split. Its contents are made while they are read.
type stream struct {
	end    context.CancelFunc
	blocks chan []byte // closed at the end
	err    error       // why the end is not the layer's; set before blocks is closed
	rest   []byte      // the bytes of the last block that were not read
}

// Open implements directory.Links. The error is EMFILE if too many files are open, of all users or
// of this one.
func (s *Store) Open(name string, user uint32) (directory.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := 0
	for _, n := range s.streams {
		all += n
	}
	if all >= maxStreams || user != 0 && s.streams[user] >= userStreams || s.life.Err() != nil {
		return nil, syscall.EMFILE
	}
	s.streams[user]++
	// One block is ready before anybody reads: the file's beginning. containers/storage reads it
	// with locks held, and the rest without them.
	f := &stream{blocks: make(chan []byte, 1)}
	ctx, end := context.WithCancel(s.life)
	f.end = end
	s.tasks.Go(func() {
		defer end()
		f.err = s.fill(ctx, f, strings.TrimSuffix(name, splitSuffix), user)
		close(f.blocks)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.streams[user]--; s.streams[user] == 0 {
			delete(s.streams, user)
		}
	})
	return f, nil
}

// Read implements directory.Stream.
func (f *stream) Read(ctx context.Context, b []byte) (int, error) {
	if len(f.rest) == 0 {
		select {
		case block, ok := <-f.blocks:
			if !ok {
				return 0, cmp.Or(f.err, io.EOF)
			}
			f.rest = block
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	n := copy(b, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// Close implements directory.Stream.
func (f *stream) Close() { f.end() }

// fill writes the file of a layer to the readers of a stream.
func (s *Store) fill(ctx context.Context, f *stream, id string, user uint32) error {
	began := time.Now()
	n, err := s.split(ctx, blockWriter{ctx, f.blocks}, id, user)
	switch {
	case err == nil:
		s.config.Log.Info("a tool has read a layer of the image store", "layer", id, "bytes", n,
			"duration", time.Since(began))
	case ctx.Err() == nil: // the file is still open
		s.config.Log.Error("cannot give a layer of the image store to a tool", "layer", id, "err", err)
	}
	return err
}

// split writes the file of a layer, and returns the size of its tar stream.
func (s *Store) split(ctx context.Context, to io.Writer, id string, user uint32) (n int64, err error) {
	out := bufio.NewWriterSize(to, blockSize)
	w, err := newSplitWriter(out)
	if err = errors.Join(err, out.Flush()); err != nil {
		return 0, err
	}
	done, err := s.turns.take(ctx, user)
	if err != nil {
		return 0, err
	}
	defer done()
	s.mu.Lock()
	l := s.list
	s.mu.Unlock()
	diffID, all, err := l.blobs(s.dir, id)
	if err != nil {
		return 0, err
	}
	for _, b := range all {
		if n, err = s.pass(ctx, b, diffID, w); n > 0 || !errors.Is(err, chunk.ErrNotFound) {
			break
		}
	}
	if err != nil {
		return n, err
	}
	return n, errors.Join(w.Close(), out.Flush())
}

// pass fetches a blob, and writes its tar stream. The caller must not use what was written if there
// is an error.
func (s *Store) pass(ctx context.Context, b blob, diffID digest.Digest, to io.Writer) (n int64, err error) {
	if err := diffID.Validate(); err != nil {
		return 0, fmt.Errorf("diffID %q: %w", diffID, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(s.config.Layers.Read(ctx, b.manifest, b.digest, &pipeSink{blob: b, pipe: w}))
	}()
	defer func() {
		cancel() // first, so that an error of the pipe is not the hub's
		r.Close()
		<-done
	}()
	sum := diffID.Verifier()
	tar, err := compress.Layer(r)
	if err == nil {
		n, err = io.Copy(io.MultiWriter(to, sum), tar)
		err = errors.Join(err, tar.Close())
	}
	if err == nil && !sum.Verified() {
		err = fmt.Errorf("its diffID is not %s", diffID)
	}
	if err != nil {
		return n, fmt.Errorf("layer %s: %w", b.digest, err)
	}
	return n, nil
}

// blockWriter passes what is written to the readers of a stream.
type blockWriter struct {
	ctx    context.Context
	blocks chan<- []byte
}

var errNotRead = fmt.Errorf("it was not read for %s", readerPatience)

// Write implements io.Writer.
func (w blockWriter) Write(b []byte) (int, error) {
	slow := time.NewTimer(readerPatience)
	defer slow.Stop()
	select {
	case w.blocks <- bytes.Clone(b):
		return len(b), nil
	case <-w.ctx.Done():
		return 0, context.Cause(w.ctx)
	case <-slow.C:
		return 0, errNotRead
	}
}
