package trees

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/prefetch"
)

// OpenTree is an open tree: its device, and the files that the device reads.
type OpenTree struct {
	Tree   chunk.ID
	Header index.Header
	Device *prefetch.Device
	Path   string // the device's path while it is served

	extents *index.Map
	file    *replaceable // the file that extents reads
	repair  *repair
	stop    context.CancelFunc // ends the repair in flight
	hint    hint
}

// close closes the device and its files. The files were only read, so errors do not matter.
func (o *OpenTree) close() {
	o.stop()
	_ = o.Device.Close()
	_ = o.hint.Close()
	_ = o.file.Close()
}

// Serve opens and verifies a tree and serves its device. If the device is served already, Serve
// only verifies the tree. fresh reports whether the device is new, so that nothing was read from it
// yet. The caller holds the tree's lock.
func (s *Store) Serve(ctx context.Context, tree chunk.ID) (o *OpenTree, fresh bool, err error) {
	o, err = s.openVerified(ctx, tree)
	if err != nil {
		return nil, false, err
	}
	if served := s.Served(tree); served != nil {
		o.close() // it was opened only to be verified
		o = served
	} else if err := s.serve(o); err != nil {
		return nil, false, err
	} else {
		fresh = true
	}
	s.closeEarly(tree) // prefetchStart may have opened the tree meanwhile
	return o, fresh, nil
}

// serve adds the device of an open tree to the server. It closes the tree if that fails.
func (s *Store) serve(o *OpenTree) error {
	var err error
	if o.Path, err = s.server.Add(o.Tree, o.Header.DeviceSize, o.Device); err != nil {
		o.close()
		return err
	}
	s.addServed(o)
	if o.locate(s.locations(o.Tree)) != nil { // the tree has no valid locations
		s.refresh(o.Tree)
	}
	return nil
}

// Unserve undoes Serve. Reads of the device fail from then on. The caller holds the tree's lock.
func (s *Store) Unserve(tree chunk.ID) error {
	o := s.takeServed(tree)
	if o == nil {
		return nil
	}
	s.locator.forget(tree)
	err := s.server.Remove(tree)
	o.close()
	return err
}

// Recover puts the store in order when a daemon starts, before the first Serve. It removes
// unfinished indexes. If serve is set, the server has taken over the previous daemon's connection.
// Recover then serves each tree on the disk again, because containers may use it. It reads only the
// header and page table of each index. If a tree cannot be opened, only its own users get errors:
// Lost lists the tree, and its files stay on the disk. The next mount of the tree fetches its index
// again (WithRepair).
func (s *Store) Recover(serve bool) error {
	if err := s.removeUnfinished(); err != nil || !serve {
		return err
	}
	trees, err := s.List()
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(recoverTogether)
	for _, tree := range trees {
		group.Go(func() error {
			o, err := s.open(tree)
			if err == nil {
				err = s.serve(o)
			}
			if err != nil {
				s.setLost(tree, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// openVerified opens a tree and verifies its extent map and metadata image. It returns a
// damagedError if the index is damaged on the disk.
func (s *Store) openVerified(ctx context.Context, tree chunk.ID) (*OpenTree, error) {
	o := s.takeEarly(tree)
	if o == nil {
		var err error
		if o, err = s.open(tree); err != nil {
			return nil, damaged(err)
		}
	}
	if err := s.verify(ctx, o); err != nil {
		o.close()
		return nil, damaged(err)
	}
	return o, nil
}

func (s *Store) verify(ctx context.Context, o *OpenTree) error {
	if err := o.extents.Verify(); err != nil {
		return err
	}
	metadata := s.Metadata(o.Tree)
	if err := verifyMetadata(ctx, metadata, o.Header, rate.Inf); err != nil {
		return err
	}
	err := checkMetadata(ctx, metadata, o.Header)
	if invalid := new(chunk.InvalidError); errors.As(err, &invalid) {
		// The file is not damaged, and another download would get the same bytes. So the error must
		// not be an InvalidError, which would cause another download.
		return fmt.Errorf("the signed index is invalid: %v", err)
	}
	return err
}

// isDamage reports whether an error means that files are not as they were written: changed,
// truncated, missing or unreadable.
func isDamage(err error) bool {
	var invalid *chunk.InvalidError
	return errors.As(err, &invalid) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EIO)
}

// open opens the files of a tree that its device reads.
func (s *Store) open(tree chunk.ID) (*OpenTree, error) {
	file, err := os.Open(s.mapFile(tree))
	if err != nil {
		return nil, err
	}
	read := &replaceable{}
	read.Store(file)
	extents, err := index.OpenMap(read, tree, s.pages)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	o := &OpenTree{Tree: tree, Header: extents.Header, extents: extents, file: read}
	var locations *index.Locations
	o.hint.file, locations, err = openLocations(s.locations(tree), tree, o.Header.Extents)
	if err != nil {
		s.log.Warn("a tree has no valid locations: chunks are fetched by their IDs until locations arrive",
			"tree", tree.Short(), "err", err)
	}
	o.Device = s.prefetcher.Open(extents, locations, s.log)
	o.Device.GuessFrom(s.Metadata(tree))
	o.Device.LocateWith(func() <-chan struct{} { return s.refresh(tree) })
	o.repair = &repair{store: s, tree: tree, extents: extents, file: read}
	o.repair.ctx, o.stop = context.WithCancel(context.Background())
	o.Device.RepairWith(o.repair.run)
	return o, nil
}

// verifyMetadata reads the metadata image, at most limit bytes a second, and verifies its digest:
// the kernel does not verify it. With a finite limit it reads from the disk, not from the page
// cache.
func verifyMetadata(ctx context.Context, path string, h index.Header, limit rate.Limit) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	const step = 1 << 20
	if limit != rate.Inf {
		_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED) // only advice
	}
	limiter, sum := rate.NewLimiter(limit, step), sha256.New()
	for {
		n, err := io.CopyN(sum, file, step)
		if err != nil && err != io.EOF {
			return fmt.Errorf("read the metadata image: %w", err)
		}
		if err := limiter.WaitN(ctx, int(n)); err != nil {
			return err
		}
		if err == io.EOF {
			break
		}
	}
	if got := chunk.ID(sum.Sum(nil)); got != h.Metadata {
		return &chunk.InvalidError{What: "metadata image " + path,
			Err: fmt.Errorf("its digest is %s, the index says %s", got.Short(), h.Metadata.Short())}
	}
	return nil
}
