package mount

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

// Source is where indexes come from (a hub).
type Source interface {
	// Index has take read the plain bytes of an index, unverified. Where take says
	// that they are invalid, or their stream ends too early, and there is another
	// origin, take is called again.
	Index(ctx context.Context, tree chunk.ID, take func(plain io.Reader) error) error
	// Locations does the same with a tree's locations, and may know that they are those
	// whose SHA-256 is have: then it does not call take. Zero: there are none.
	Locations(ctx context.Context, tree, have chunk.ID, take func(plain io.Reader) error) error
}

const (
	// fetchTimeout bounds the download of one index.
	fetchTimeout = 5 * time.Minute
	// hintTimeout is how long a verified index waits for its locations, which
	// are a hint and no more.
	hintTimeout = 2 * time.Second
)

// Ensure makes sure that the tree's index is on this machine, verified and
// synced to its disk, and that what its start needs is on its way. It fails when
// nothing arrives for a while, and calls begun as soon as what arrives is known to be
// the tree's index.
func (t *Trees) Ensure(ctx context.Context, tree chunk.ID, begun func()) error {
	if t.Has(tree) {
		t.begin(tree)
		t.refreshForStart(tree)
		return nil
	}
	err := t.fetch(ctx, tree, true, begun)
	if err == nil {
		t.begin(tree)
	}
	return err
}

// renew fetches the index of a tree that is here once more.
func (t *Trees) renew(ctx context.Context, tree chunk.ID) error {
	return t.fetch(ctx, tree, false, func() {})
}

// damagedError says that a tree's index is damaged on the disk.
type damagedError struct{ error }

func (e damagedError) Unwrap() error { return e.error }

// damaged makes an error of reading an index a damagedError if the files are to blame.
func damaged(err error) error {
	if isDamage(err) {
		return damagedError{err}
	}
	return err
}

// useWhole calls use, which needs an index that is not damaged. Where it fails with a damagedError,
// the index is fetched once more and use called again. use takes the tree's lock itself, which is
// not held while the index is fetched.
func (t *Trees) useWhole(ctx context.Context, tree chunk.ID, use func() error) error {
	err := use()
	if !errors.As(err, new(damagedError)) || !t.Has(tree) {
		return err
	}
	t.log.Warn("an index is damaged on the disk, and fetched once more", "tree", tree.Short(), "cause", err)
	if failed := t.renew(ctx, tree); failed != nil {
		return errors.Join(err, failed)
	}
	return use()
}

// download fetches an index aside, then publishes it.
func (t *Trees) download(f *fetch, tree chunk.ID) (err error) {
	ctx, cancel := context.WithTimeout(f.ctx, fetchTimeout)
	defer cancel()
	// A name of its own: nothing that is left of another download is in the way.
	fresh, err := os.MkdirTemp(filepath.Join(t.root, "trees"), newPrefix+tree.String()+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			t.leftovers.Remove(fresh)
		}
	}()
	if err := t.fetchParts(ctx, tree, fresh, sync.OnceFunc(func() { close(f.begun) })); err != nil {
		return err
	}
	return t.publish(f, tree, fresh)
}

// fetchParts fetches the index and, beside it, the locations. Only the index
// must come. The locations are asked for at once, and read when the index's header was verified,
// which bounds them.
func (t *Trees) fetchParts(ctx context.Context, tree chunk.ID, dir string, begun func()) error {
	hint, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var header index.Header
	verified := make(chan struct{}) // closed when header is set
	learn := func(h index.Header) { header = h; close(verified) }
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
	go func() { arrived <- t.fetchLocations(hint, tree, chunk.ID{}, locations, extents) }()
	if err := t.fetchIndex(ctx, tree, dir, learn, begun); err != nil {
		giveUp()
		<-arrived
		return err
	}
	defer time.AfterFunc(hintTimeout, giveUp).Stop()
	err := <-arrived
	if err == nil {
		return nil
	}
	t.log.Warn("no locations: chunks will be asked for by their IDs until they come", "tree", tree.Short(), "cause", err)
	return removeIfThere(locations)
}

// fetchIndex writes the two parts of an index below dir. It calls learn with the verified header,
// once, and begun when the first of the rest was verified.
func (t *Trees) fetchIndex(
	ctx context.Context, tree chunk.ID, dir string, learn func(index.Header), begun func(),
) error {
	extents, metadata := filepath.Join(dir, "map"), filepath.Join(dir, "metadata")
	var header index.Header
	first := sync.OnceFunc(func() { learn(header) }) // other origins have the same
	err := t.source.Index(ctx, tree, func(plain io.Reader) error {
		// Of an origin whose index was damaged.
		if err := errors.Join(removeIfThere(extents), removeIfThere(metadata)); err != nil {
			return err
		}
		var head bytes.Buffer
		var err error
		if header, err = index.ReceiveHeader(io.TeeReader(plain, &head), tree); err != nil {
			return err
		}
		first()
		return writeSynced(extents, func(extents io.Writer) error {
			return writeSynced(metadata, func(metadata io.Writer) error {
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

// checkMetadata looks at what the kernel will be given, before it is.
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

// fetchLocations writes the locations of a tree to a file and syncs it, unless it learns that they
// are those whose SHA-256 is have. extents waits for the number of the tree's extents: before
// that is known nothing is read.
func (t *Trees) fetchLocations(
	ctx context.Context, tree, have chunk.ID, path string, extents func() (int64, error),
) error {
	return t.source.Locations(ctx, tree, have, func(plain io.Reader) error {
		n, err := extents()
		if err != nil {
			return err
		}
		if err := removeIfThere(path); err != nil {
			return err
		}
		err = writeSynced(path, func(w io.Writer) error {
			_, err := io.Copy(w, io.LimitReader(plain, index.MaxLocations(n)))
			return err
		})
		if err != nil {
			return err
		}
		if err := checkLocations(path, tree, n); err != nil { // another origin may have right ones
			return &chunk.InvalidError{What: "the locations of tree " + tree.Short(), Err: err}
		}
		return nil
	})
}

func checkLocations(path string, tree chunk.ID, extents int64) error {
	file, _, err := openLocations(path, tree, extents)
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
