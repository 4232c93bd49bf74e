// Package starts turns traces that nodes report into startup packs, so that the next starts are
// faster. It keeps a bounded number of traces of each image and lays the image's chunks out in
// startup packs accordingly.
//
// All of it is a hint. Traces are not trusted: one that is absurd, stale or made up wastes a bounded
// number of bytes, and never changes what a container reads.
package startup

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/hub/catalog"
	"lighter/hub/encoder"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/report"
)

const (
	// atOnce bounds the traces decoded at a time, each of up to some ten megabytes. Others wait for
	// takeTimeout.
	atOnce = 4
	// shownAtOnce bounds the images described or exported at a time. Each needs an index in the
	// scratch space.
	shownAtOnce = 2
	takeTimeout = 5 * time.Second
	// settling is how long the hub waits for more traces of a tree before it lays the tree out.
	settling = 3 * time.Second
)

// Images says how the containers of an image run.
type Images interface {
	RunConfig(ctx context.Context, image catalog.Image) (v1.ImageConfig, error)
}

// Service keeps traces and makes startup packs. It is safe for concurrent use.
type Service struct {
	catalog   *catalog.Catalog
	objects   *objects.Store
	publisher *publish.Publisher
	encoders  *encoder.Pool
	images    Images
	log       *slog.Logger

	senders senders

	taking  *semaphore.Weighted // places for nodes' traces and administrators' changes
	reading *semaphore.Weighted // places for descriptions and exports
	wake    chan struct{}       // has an element if something may be due

	mu      sync.Mutex             // guards the following
	devices map[chunk.ID]int64     // sizes in bytes, by tree
	rests   map[chunk.ID]time.Time // trees that are not laid out again before a time
	loose   map[chunk.ID]*looseLayout
	used    map[chunk.ID]time.Time // last uses of trees that the catalog does not have yet
	round   chan struct{}          // closed after each attempt to lay a tree out
	current chunk.ID               // the tree that is being laid out

	// The constants of these names; shorter in tests.
	Settling, Keep, PressAfter, Regain time.Duration
	limit                              int64

	laid, failed   atomic.Int64 // layouts made, and given up
	taken, refused atomic.Int64 // traces
}

// New returns a service over the stores, whose startup packs take limit bytes at most; 0: as Limit
// computes. Nothing is laid out before Run.
func New(c *catalog.Catalog, o *objects.Store, p *publish.Publisher, e *encoder.Pool, i Images, limit int64, log *slog.Logger) *Service {
	return &Service{catalog: c, objects: o, publisher: p, encoders: e, images: i, limit: limit, log: log,
		taking: semaphore.NewWeighted(atOnce), reading: semaphore.NewWeighted(shownAtOnce), wake: make(chan struct{}, 1), devices: map[chunk.ID]int64{}, rests: map[chunk.ID]time.Time{},
		loose: map[chunk.ID]*looseLayout{}, used: map[chunk.ID]time.Time{}, round: make(chan struct{}),
		Settling: settling, Keep: keep, PressAfter: pressAfter, Regain: regain}
}

// Take keeps a trace, as package trace encodes it, of a tree of a ready image. sender is what SenderOf
// returns. Errors are report.ErrInvalid, report.ErrBusy, catalog.ErrFull if the sender has sent enough
// of this tree, catalog.ErrNotFound and objects.ErrNotFound.
func (s *Service) Take(ctx context.Context, tree chunk.ID, sender string, body []byte) (err error) {
	defer func() {
		if err != nil {
			s.refused.Add(1)
		} else {
			s.taken.Add(1)
		}
	}()
	if err := enter(ctx, s.taking, 1); err != nil {
		return err
	}
	defer s.taking.Release(1)
	device, err := s.device(ctx, tree)
	if err != nil {
		return err
	}
	t, err := trace.Decode(body, tree, device)
	if err != nil {
		return fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	if len(t.Reads) == 0 {
		return nil
	}
	if !s.senders.count(sender, tree, 1, 0, time.Now()) {
		return fmt.Errorf("from %s: %w", sender, catalog.ErrFull)
	}
	if err := s.catalog.AddTrace(ctx, tree, sender, squeeze(t.Encode()), s.dueAt(tree)); err != nil {
		return err
	}
	s.Used(tree)
	s.wakeUp()
	return nil
}

// enter acquires n places within takeTimeout. The caller releases them. The error is report.ErrBusy.
func enter(ctx context.Context, places *semaphore.Weighted, n int64) error {
	wait, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	if places.Acquire(wait, n) != nil {
		return report.ErrBusy
	}
	return nil
}

// Counts are the service's figures since the hub started.
type Counts struct {
	Taken, Refused int64 // traces of nodes
	Laid, Failed   int64 // layouts made, and trees given up
}

// Counts returns the counts.
func (s *Service) Counts() Counts {
	return Counts{s.taken.Load(), s.refused.Load(), s.laid.Load(), s.failed.Load()}
}

// maxDevices bounds the device sizes in memory, of 40 bytes and more each.
const maxDevices = 4096

// device returns the size of a tree's device in bytes.
func (s *Service) device(ctx context.Context, tree chunk.ID) (int64, error) {
	s.mu.Lock()
	size, known := s.devices[tree]
	s.mu.Unlock()
	if known {
		return size, nil
	}
	o, err := s.objects.Open(ctx, objects.IndexKey(tree))
	if err != nil {
		return 0, err
	}
	defer o.Close()
	z, err := compress.Reader(o)
	if err != nil {
		return 0, err
	}
	defer z.Close()
	header, err := index.ReceiveHeader(z, tree)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.devices) >= maxDevices {
		clear(s.devices)
	}
	s.devices[tree] = header.DeviceSize
	return header.DeviceSize, nil
}

// wakeUp makes Run look for due trees.
func (s *Service) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
