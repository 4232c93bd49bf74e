package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/node/flight"
	"lighter/node/layerblob"
)

// ensure fetches a layer into containerd's content store, once for all callers. The fetch goes on
// when all callers have stopped waiting: containerd cannot pass on that its client has gone.
func (b *Blobs) ensure(ctx context.Context, n name) error {
	return b.flights.Join(n.layer, func(ctx context.Context, c *flight.Call) error {
		if !c.Keep() { // the next call uses the same file
			return flight.ErrNoWaiter
		}
		b.tasks.Add(1)
		defer b.tasks.Done()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(b.life, cancel)()
		return b.fetchLogged(ctx, n)
	}).Wait(ctx)
}

func (b *Blobs) fetchLogged(ctx context.Context, n name) error {
	began := time.Now()
	b.count(func(s *Status) { s.Fetching++ })
	err := b.fetch(ctx, n)
	b.count(func(s *Status) {
		s.Fetching--
		if err == nil {
			s.Fetched, s.Bytes = s.Fetched+1, s.Bytes+n.size
		} else if !errors.Is(err, errRemoved) {
			s.Failures, s.Failure = s.Failures+1, fmt.Sprintf("layer %s: %v", n.layer, err)
		}
	})
	switch {
	case err == nil:
		b.config.Log.Info("fetched a layer for containerd", "layer", n.layer, "bytes", n.size,
			"duration", time.Since(began))
	case errors.Is(err, errRemoved):
		b.config.Log.Info("containerd has removed a layer while it was fetched", "layer", n.layer)
	default:
		b.config.Log.Error("cannot fetch a layer for containerd", "layer", n.layer, "manifest", n.manifest,
			"bytes", n.size, "err", err)
	}
	return err
}

// fetch fetches a layer, verifies it, and publishes it.
func (b *Blobs) fetch(ctx context.Context, n name) error {
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	in, err := b.where()
	if err != nil {
		return err
	}
	if err := durable.MkdirAll(in.scratch()); err != nil {
		return fmt.Errorf("make the directory of unfinished layers: %w", err)
	}
	d, err := newDownload(filepath.Join(in.scratch(), hexOf(n.layer)), n)
	if err != nil {
		return err
	}
	defer d.discard()
	if err := b.config.Layers.Read(ctx, n.manifest, n.layer, d); err != nil {
		if errors.Is(err, chunk.ErrNotFound) {
			err = errors.Join(err, b.giveUp(ctx, in, n))
		}
		return err
	}
	if err := d.finish(); err != nil {
		return err
	}
	return in.publish(d.file.Name(), n)
}

// download is a layer that is being fetched into a file.
type download struct {
	name
	file   *os.File
	buffer []byte
	hash   hash.Hash // of the bytes before at
	at     int64
}

// newDownload makes the file, and reserves the space for the layer: if the disk has too little, no
// byte of it is filled.
func newDownload(path string, n name) (*download, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", layerblob.ErrSink, err)
	}
	d := &download{name: n, file: file, buffer: make([]byte, copyBuffer), hash: sha256.New()}
	err = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, n.size)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		d.discard()
		return nil, fmt.Errorf("%w: reserve %d bytes in %s: %w", layerblob.ErrSink, n.size, path, err)
	}
	return d, nil
}

// At implements layerblob.Sink.
func (d *download) At() int64 { return d.at }

// Take implements layerblob.Sink. It appends the bytes of an answer. At the end it verifies the
// layer.
func (d *download) Take(at int64, body io.Reader) error {
	if at != d.at {
		d.reset()
	}
	for {
		n, err := body.Read(d.buffer)
		if int64(n) > d.size-d.at {
			return d.invalid(fmt.Errorf("it has more than %d bytes", d.size))
		}
		if _, err := d.file.WriteAt(d.buffer[:n], d.at); err != nil {
			return fmt.Errorf("%w: %w", layerblob.ErrSink, err)
		}
		d.hash.Write(d.buffer[:n])
		d.at += int64(n)
		if err == io.EOF {
			return d.verify()
		}
		if err != nil {
			return err
		}
	}
}

func (d *download) verify() error {
	if d.at != d.size {
		return d.invalid(fmt.Errorf("it has %d bytes, not %d", d.at, d.size))
	}
	if got := algorithm + hex.EncodeToString(d.hash.Sum(nil)); got != d.layer {
		return d.invalid(fmt.Errorf("its digest is %s", got))
	}
	return nil
}

// invalid returns the error of a wrong answer, and drops its bytes.
func (d *download) invalid(err error) error {
	d.reset()
	return &chunk.InvalidError{What: "layer " + d.layer, Err: err}
}

// reset drops the bytes that have arrived.
func (d *download) reset() {
	d.hash.Reset()
	d.at = 0
}

// finish makes the verified file durable. Its mode is that of containerd's blobs.
func (d *download) finish() error {
	if err := errors.Join(d.file.Truncate(d.size), d.file.Chmod(0o444), d.file.Sync()); err != nil {
		return fmt.Errorf("%w: %w", layerblob.ErrSink, err)
	}
	return nil
}

// discard closes the file, and removes it unless it was published.
func (d *download) discard() {
	_ = os.Remove(d.file.Name()) // a file that stays is removed at the next start
	_ = d.file.Close()
}
