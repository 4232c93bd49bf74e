package hubs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/bench"
	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/sleep"
	nodestore "lighter/store"
	"lighter/store/origin"
	"lighter/wire/client"
)

const (
	duringImage = "sci"
	duringRatio = 1.1 // target: time of an ingestion during a collection : without a collection

	faultsRatio = 1.2                   // target: p99 of a fault during a collection : before it
	readers     = 8                     // concurrent readers
	readPause   = 40 * time.Millisecond // of a reader between two faults
	readTime    = 10 * time.Second      // of all readers; shorter if the collection ends before
)

// collection is a running collection.
type collection struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended; took is set then
	begun  time.Time
	took   time.Duration
	err    error
}

// begin begins a collection.
func (p *process) begin(ctx context.Context) *collection {
	c := &collection{done: make(chan struct{}), begun: time.Now()}
	ctx, c.cancel = context.WithCancel(ctx)
	go func() {
		defer close(c.done)
		_, c.err = p.collect(ctx)
		c.took = time.Since(c.begun)
	}()
	return c
}

// end stops waiting for the collection. It returns the share of the time since since in which the
// collection ran.
func (c *collection) end(since time.Time) (share float64, err error) {
	all := time.Since(since)
	select {
	case <-c.done:
		share, err = float64(c.begun.Add(c.took).Sub(since))/float64(all), c.err
	default:
		share = 1
	}
	c.cancel()
	<-c.done
	return share, err
}

// during compares two ingestions of an image: one while a collection rewrites packs, and one
// without a collection.
func (r *run) during(ctx context.Context) error {
	var shares []float64
	err := r.compare(ctx, "during", "during a collection : without one", duringImage, duringRatio,
		func(string) (cost, error) {
			took, share, err := r.ingestDuring(ctx, true)
			shares = append(shares, share)
			return took, err
		},
		func(string) (cost, error) {
			took, _, err := r.ingestDuring(ctx, false)
			return took, err
		})
	if err == nil {
		r.add(Result{Figure: "during", What: "share of the ingestion's time in which the collection ran",
			Value: bench.Median(shares), Unit: "ratio", All: shares}, 0)
	}
	return err
}

// ingestDuring ingests an image into a hub with garbage, while a collection runs or without one.
func (r *run) ingestDuring(ctx context.Context, collects bool) (took cost, share float64, err error) {
	layout, err := r.config.Layout(duringImage)
	if err != nil {
		return took, 0, err
	}
	p, err := r.withGarbage(ctx, "")
	if err != nil {
		return took, 0, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	before, err := p.processor()
	if err != nil {
		return took, 0, err
	}
	begun := time.Now()
	var c *collection
	if collects {
		c = p.begin(ctx)
	}
	took.time, err = seconds(func() error {
		if err := p.push(ctx, layout, duringImage+":1"); err != nil {
			return err
		}
		return p.ready(ctx, duringImage+":1")
	})
	if collects {
		var failed error
		share, failed = c.end(begun)
		err = errors.Join(err, failed)
	}
	if err == nil {
		took.processor, err = p.processor()
		took.processor -= before
	}
	return took, share, err
}

// faults compares the faults of nodes while a collection rewrites packs with faults before the
// collection. A fault is simulated with a node's client, which fetches a unit and decodes it.
func (r *run) faults(ctx context.Context) error {
	var all, base, shares []float64
	for range r.Rounds {
		with, without, share, err := r.faultsOnce(ctx)
		if err != nil {
			return err
		}
		all, base, shares = append(all, with), append(base, without), append(shares, share)
	}
	r.ratio("faults", "p99 of a fault, during a collection : before it", all, base, faultsRatio)
	r.median("faults", "p99 of a fault before the collection", base, 0)
	r.add(Result{Figure: "faults", What: "share of the readers' time in which the collection ran",
		Value: bench.Median(shares), Unit: "ratio", All: shares}, 0)
	return nil
}

func (r *run) faultsOnce(ctx context.Context) (with, without, share float64, err error) {
	p, err := r.withGarbage(ctx, "")
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	hub, err := origin.New(slog.New(slog.DiscardHandler), client.Options{URL: "http://" + p.address})
	if err != nil {
		return 0, 0, 0, err
	}
	units, err := unitsOf(ctx, p, hub)
	if err != nil {
		return 0, 0, 0, err
	}
	if _, err := readUnits(ctx, hub, units, nil); err != nil { // loads the units into the hub's page cache
		return 0, 0, 0, err
	}
	if without, err = readUnits(ctx, hub, units, nil); err != nil {
		return 0, 0, 0, err
	}
	begun := time.Now()
	c := p.begin(ctx)
	with, err = readUnits(ctx, hub, units, c.done)
	share, failed := c.end(begun)
	return with, without, share, errors.Join(err, failed)
}

// unitsOf returns the units of all images of a hub, in a random order.
func unitsOf(ctx context.Context, p *process, hub *origin.Failover) ([]chunk.Unit, error) {
	images, err := p.Images(ctx, "")
	if err != nil {
		return nil, err
	}
	seen := map[chunk.Unit]bool{}
	for _, i := range images {
		tree, err := chunk.ParseID(i.Tree)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", i.Name, err)
		}
		if err := hub.Locations(ctx, tree, chunk.ID{}, func(plain io.Reader) error {
			b, err := io.ReadAll(plain)
			if err != nil {
				return err
			}
			l, err := index.OpenLocations(bytes.NewReader(b), int64(len(b)), tree, -1)
			if err != nil {
				return err
			}
			return l.Each(func(_ int64, u chunk.Unit) error {
				seen[u] = seen[u] || !u.IsZero()
				return nil
			})
		}); err != nil {
			return nil, err
		}
	}
	var units []chunk.Unit
	for u, is := range seen {
		if is {
			units = append(units, u)
		}
	}
	slices.SortFunc(units, func(a, b chunk.Unit) int {
		return cmp.Or(bytes.Compare(a.Pack[:], b.Pack[:]), cmp.Compare(a.N, b.N))
	})
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(units), func(i, k int) { units[i], units[k] = units[k], units[i] })
	return units, nil
}

// readUnits reads units, repeatedly if need be, for readTime or until done is closed. It returns
// the 99th percentile of the times of all reads, in seconds.
func readUnits(
	ctx context.Context, hub *origin.Failover, units []chunk.Unit, done <-chan struct{},
) (p99 float64, err error) {
	end := time.Now().Add(readTime)
	ended := func() bool {
		select {
		case <-done:
			return true
		default:
			return time.Now().After(end)
		}
	}
	times := make([][]float64, readers)
	group, ctx := errgroup.WithContext(ctx)
	for n := range readers {
		group.Go(func() error {
			for i := n; !ended(); i += readers {
				took, err := seconds(func() error { return fault(ctx, hub, units[i%len(units)]) })
				if err != nil {
					return err
				}
				times[n] = append(times[n], took)
				if !sleep.For(ctx, readPause) {
					return ctx.Err()
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	all := slices.Sorted(slices.Values(slices.Concat(times...)))
	return all[int(math.Ceil(0.99*float64(len(all))))-1], nil
}

// fault fetches a unit, and decodes it.
func fault(ctx context.Context, hub *origin.Failover, u chunk.Unit) error {
	return hub.FetchUnit(ctx, u, func(a nodestore.Answer) error {
		b, err := io.ReadAll(a.Body)
		if err == nil {
			_, err = a.Decode(b)
		}
		return err
	})
}
