package trees

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

// Source is where indexes and locations are fetched from (a hub).
type Source interface {
	// Index calls take with the plain bytes of an index, unverified. If take's error says that they
	// are invalid or end too early, Index calls take again with another origin's bytes, if there is
	// another origin.
	Index(ctx context.Context, tree chunk.ID, take func(plain io.Reader) error) error
	// Locations calls take with the plain bytes of a tree's locations, as Index does. have is the
	// SHA-256 of the locations that the caller has, or zero. If these are current, Locations need
	// not call take.
	Locations(ctx context.Context, tree, have chunk.ID, take func(plain io.Reader) error) error
}

// fetcher fetches indexes and locations from a source to files, verified, and not yet synced.
type fetcher struct {
	source Source
	log    *slog.Logger
}

// fetchParts fetches an index and its locations at the same time. It succeeds without locations,
// too. Locations are requested at once, but read only once the header of the index is verified,
// which limits their size.
func (f fetcher) fetchParts(ctx context.Context, tree chunk.ID, dir string, begun func()) error {
	hint, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var header index.Header
	verified := make(chan struct{}) // closed when header is set
	setHeader := func(h index.Header) { header = h; close(verified) }
	extents := func() (int64, error) {
		select {
		case <-verified:
			return header.Extents, nil
		case <-hint.Done():
			return 0, context.Cause(hint)
		}
	}
	arrived := make(chan error, 1)
	locations := filepath.Join(dir, "locations")
	go func() { arrived <- f.fetchLocations(hint, tree, chunk.ID{}, locations, extents) }()
	if err := f.fetchIndex(ctx, tree, dir, setHeader, begun); err != nil {
		giveUp()
		<-arrived
		return err
	}
	defer time.AfterFunc(hintTimeout, giveUp).Stop()
	err := <-arrived
	if err == nil {
		return nil
	}
	f.log.Warn("a tree has no valid locations: chunks are fetched by their IDs until locations arrive",
		"tree", tree.Short(), "err", err)
	return removeIfExists(locations)
}

// fetchIndex writes the two files of an index to dir: extent map and metadata image. It calls
// setHeader once, with the verified header. It calls begun before each write to the extent map. At
// the first write, the page table is verified, too.
func (f fetcher) fetchIndex(
	ctx context.Context, tree chunk.ID, dir string, setHeader func(index.Header), begun func(),
) error {
	extents, metadata := filepath.Join(dir, "map"), filepath.Join(dir, "metadata")
	var header index.Header
	setOnce := sync.OnceFunc(func() { setHeader(header) }) // all origins have the same verified header
	err := f.source.Index(ctx, tree, func(plain io.Reader) error {
		// If another origin has sent a damaged index, the files have parts of that index.
		if err := errors.Join(removeIfExists(extents), removeIfExists(metadata)); err != nil {
			return err
		}
		var head bytes.Buffer
		var err error
		if header, err = index.ReceiveHeader(io.TeeReader(plain, &head), tree); err != nil {
			return err
		}
		setOnce()
		return writeNew(extents, func(extents io.Writer) error {
			return writeNew(metadata, func(metadata io.Writer) error {
				_, err := index.Receive(io.MultiReader(&head, plain), tree, writerFunc(func(b []byte) (int, error) {
					begun()
					return extents.Write(b)
				}), metadata)
				return err
			})
		})
	})
	if err == nil {
		err = checkMetadata(ctx, metadata, header)
	}
	return err
}

// checkMetadata checks a metadata image for contents that could confuse the kernel.
func checkMetadata(ctx context.Context, path string, header index.Header) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return header.CheckMetadata(ctx, file)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// fetchLocations writes the locations of a tree to a new file. have is the SHA-256 of the locations
// that the caller has, or zero. If these are current, fetchLocations may write no file. extents
// waits for the number of the tree's extents, which limits the size of the locations. No locations
// are read before it returns.
func (f fetcher) fetchLocations(
	ctx context.Context, tree, have chunk.ID, path string, extents func() (int64, error),
) error {
	return f.source.Locations(ctx, tree, have, func(plain io.Reader) error {
		n, err := extents()
		if err != nil {
			return err
		}
		if err := removeIfExists(path); err != nil {
			return err
		}
		err = writeNew(path, func(w io.Writer) error {
			_, err := io.Copy(w, io.LimitReader(plain, index.MaxLocations(n)))
			return err
		})
		if err != nil {
			return err
		}
		file, _, err := openLocations(path, tree, n)
		if err != nil { // another origin may have valid locations
			return &chunk.InvalidError{What: "the locations of tree " + tree.Short(), Err: err}
		}
		return file.Close()
	})
}

// openLocations opens a file of locations, and checks that they are the tree's.
func openLocations(path string, tree chunk.ID, extents int64) (*os.File, *index.Locations, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	locations, err := index.OpenLocations(file, info.Size(), tree, extents)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, locations, nil
}

// writeNew writes a new file. It is synced when it is published.
func writeNew(path string, write func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o400)
	if err != nil {
		return err
	}
	defer file.Close()
	buffered := bufio.NewWriterSize(file, 256<<10)
	if err := write(buffered); err != nil {
		return err
	}
	return errors.Join(buffered.Flush(), file.Close())
}

func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
