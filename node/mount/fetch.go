package mount

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/state"
)

// Source is where indexes come from (a hub).
type Source interface {
	// Index streams the plain bytes of an index, unverified.
	Index(ctx context.Context, tree chunk.ID) (io.ReadCloser, error)
	// Locations streams a tree's locations.
	Locations(ctx context.Context, tree chunk.ID) (io.ReadCloser, error)
}

const (
	// fetchTimeout bounds the download of one index, stallTimeout the time in
	// which nothing of it arrives.
	fetchTimeout = 5 * time.Minute
	stallTimeout = 10 * time.Second
	// hintTimeout is how long a verified index waits for its locations, which
	// are a hint and no more.
	hintTimeout = 2 * time.Second
	// maxLocations bounds the locations of one tree, in bytes, until its index
	// has said how many there are: 8 for each of 100 million extents.
	maxLocations = 800 << 20
)

// Ensure makes sure that the tree's index is on this machine, verified and
// synced to its disk. It fails when nothing arrives for a while, and calls begun
// as soon as what arrives is known to be the tree's index.
func (t *Trees) Ensure(ctx context.Context, tree chunk.ID, begun func()) error {
	if t.Has(tree) {
		return nil
	}
	return t.fetch(ctx, tree, func() error {
		if t.Has(tree) {
			return nil
		}
		return t.download(ctx, tree, begun)
	})
}

// renew fetches a tree's index once more.
func (t *Trees) renew(ctx context.Context, tree chunk.ID) error {
	return t.fetch(ctx, tree, func() error { return t.download(ctx, tree, func() {}) })
}

// fetch calls download, once at a time for each tree: who comes second gets the
// first one's answer.
func (t *Trees) fetch(ctx context.Context, tree chunk.ID, download func() error) error {
	done := t.fetches.DoChan(tree.String(), func() (any, error) { return nil, download() })
	var err error
	select {
	case result := <-done:
		err = result.Err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("fetch index %s: %w", tree.Short(), err)
	}
	return nil
}

func (t *Trees) download(ctx context.Context, tree chunk.ID, begun func()) (err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	fresh := t.aside(newPrefix, tree)
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(fresh))
		}
	}()
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	if err := t.fetchParts(ctx, tree, fresh, begun); err != nil {
		return err
	}
	// What was there was damaged.
	if err := state.Discard(t.dir(tree), t.aside(oldPrefix, tree)); err != nil {
		return err
	}
	return state.Publish(fresh, t.dir(tree))
}

// fetchParts fetches the index and, beside it, the locations. Only the index
// must come.
func (t *Trees) fetchParts(ctx context.Context, tree chunk.ID, dir string, begun func()) error {
	hint, giveUp := context.WithCancel(ctx)
	defer giveUp()
	arrived := make(chan error, 1)
	go func() { arrived <- t.fetchLocations(hint, tree, dir) }()
	header, err := t.fetchIndex(ctx, tree, dir, begun)
	if err != nil {
		giveUp()
		<-arrived
		return err
	}
	defer time.AfterFunc(hintTimeout, giveUp).Stop()
	err = <-arrived
	if err == nil {
		err = checkLocations(dir, header)
	}
	if err == nil {
		return nil
	}
	t.log.Warn("no locations: chunks will be asked for by their IDs", "tree", tree.Short(), "cause", err)
	return removeIfThere(filepath.Join(dir, "locations"))
}

func (t *Trees) fetchIndex(ctx context.Context, tree chunk.ID, dir string, begun func()) (header index.Header, err error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	stalled := time.AfterFunc(stallTimeout, func() { giveUp(fmt.Errorf("nothing came for %s", stallTimeout)) })
	defer stalled.Stop()
	plain, err := t.source.Index(ctx, tree)
	if err != nil {
		return header, because(ctx, err)
	}
	defer plain.Close()
	arriving := readerFunc(func(b []byte) (int, error) {
		n, err := plain.Read(b)
		if n > 0 {
			stalled.Reset(stallTimeout)
		}
		return n, err
	})
	err = writeSynced(filepath.Join(dir, "map"), func(extents io.Writer) error {
		return writeSynced(filepath.Join(dir, "metadata"), func(metadata io.Writer) error {
			// The first thing that is written was verified.
			header, err = index.Receive(arriving, tree, writerFunc(func(b []byte) (int, error) {
				begun()
				return extents.Write(b)
			}), metadata)
			return err
		})
	})
	stalled.Stop()
	if err == nil {
		err = checkMetadata(ctx, filepath.Join(dir, "metadata"), header)
	}
	return header, because(ctx, err)
}

// checkMetadata looks at what the kernel will be given, before it is.
func checkMetadata(ctx context.Context, path string, header index.Header) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return header.CheckMetadata(ctx, file)
}

// because says why a context ended that an error comes from.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func (t *Trees) fetchLocations(ctx context.Context, tree chunk.ID, dir string) error {
	plain, err := t.source.Locations(ctx, tree)
	if err != nil {
		return err
	}
	defer plain.Close()
	return writeSynced(filepath.Join(dir, "locations"), func(w io.Writer) error {
		_, err := io.Copy(w, io.LimitReader(plain, maxLocations))
		return err
	})
}

func checkLocations(dir string, header index.Header) error {
	file, _, err := openLocations(dir, header)
	if err != nil {
		return err
	}
	return file.Close()
}

// writeSynced writes a new file and syncs it.
func writeSynced(path string, write func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o400)
	if err != nil {
		return err
	}
	defer file.Close()
	buffered := bufio.NewWriterSize(file, 256<<10)
	if err := write(buffered); err != nil {
		return err
	}
	return errors.Join(buffered.Flush(), file.Sync(), file.Close())
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
