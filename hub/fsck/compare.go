package fsck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/sleep"
)

// objectKinds are the kinds of objects, in the order of their keys.
var objectKinds = []struct {
	kind   catalog.ObjectKind
	prefix string
	name   string
	key    func(id chunk.ID) string
}{
	{catalog.Indexes, "indexes/", "index", objects.IndexKey},
	{catalog.Records, "layers/", "layer record", func(id chunk.ID) string { return objects.LayerKey(diffIDOf(id)) }},
	{catalog.Locations, "locations/", "locations", objects.LocationsKey},
	{catalog.Packs, "packs/", "pack", objects.PackKey},
}

// diffIDOf returns the diffID of the layer whose record has that ID.
func diffIDOf(id chunk.ID) string { return "sha256:" + id.String() }

// object is an object that the catalog may name.
type object struct {
	key  string
	kind catalog.ObjectKind
	id   chunk.ID
}

// parse returns the object with a key. It reports false if no object has such a key.
func parse(key string) (object, bool) {
	for _, k := range objectKinds {
		name, found := strings.CutPrefix(key, k.prefix)
		if !found {
			continue
		}
		id, err := chunk.ParseID(strings.TrimSuffix(name, ".zst"))
		return object{key, k.kind, id}, err == nil && k.key(id) == key
	}
	return object{}, false
}

// pair is what bucket and catalog say about one key.
type pair struct {
	key    string
	stored bool // in the bucket
	known  bool // to the catalog
	size   int64
	want   int64 // the catalog's size; -1: not known
	made   time.Time
}

// knownBatch is the number of objects in one query of the catalog.
const knownBatch = 1000

// known yields what the catalog names after a key, in the order of keys.
func (c *Checker) known(ctx context.Context, after string) iter.Seq2[pair, error] {
	return func(yield func(pair, error) bool) {
		for _, k := range objectKinds {
			from := lastUpTo(k.key, after)
			for {
				batch, err := c.Catalog.Checks.Objects(ctx, k.kind, from, knownBatch)
				if err != nil {
					yield(pair{}, err)
					return
				}
				for _, o := range batch {
					if !yield(pair{key: k.key(o.ID), known: true, want: o.Size}, nil) {
						return
					}
				}
				if len(batch) < knownBatch {
					break
				}
				from = batch[len(batch)-1].ID
			}
		}
	}
}

// lastUpTo returns the greatest ID whose key is not after another key, which may be of any form. It
// is zero if there is none. keyOf has the order of the IDs.
func lastUpTo(keyOf func(chunk.ID) string, after string) (id chunk.ID) {
	for bit := range 8 * len(id) {
		set := id
		if set[bit/8] |= 0x80 >> (bit % 8); keyOf(set) <= after {
			id = set
		}
	}
	return id
}

// stored yields what the bucket has after a key, in the order of keys.
func (c *Checker) stored(ctx context.Context, after string) iter.Seq2[pair, error] {
	return func(yield func(pair, error) bool) {
		for o, err := range c.Objects.List(ctx, after) {
			if !yield(pair{key: o.Key, stored: true, size: o.Size, made: o.Time}, err) {
				return
			}
		}
	}
}

// pairs yields everything that bucket or catalog have after a key, in the order of keys.
func (c *Checker) pairs(ctx context.Context, after string) iter.Seq2[pair, error] {
	return func(yield func(pair, error) bool) {
		nextStored, stopStored := iter.Pull2(c.stored(ctx, after))
		defer stopStored()
		nextKnown, stopKnown := iter.Pull2(c.known(ctx, after))
		defer stopKnown()
		s, sErr, hasS := nextStored()
		k, kErr, hasK := nextKnown()
		for hasS || hasK {
			if err := errors.Join(sErr, kErr); err != nil {
				yield(pair{}, err)
				return
			}
			next := s
			order := cmp.Compare(s.key, k.key)
			switch {
			case !hasS || hasK && order > 0:
				next = k
				k, kErr, hasK = nextKnown()
			case !hasK || order < 0:
				s, sErr, hasS = nextStored()
			default:
				next.known, next.want = true, k.want
				s, sErr, hasS = nextStored()
				k, kErr, hasK = nextKnown()
			}
			if !yield(next, nil) {
				return
			}
		}
	}
}

// lost is an object that the catalog names and the bucket does not have as it should.
type lost struct {
	object
	why string
}

// differences are what is wrong with some objects.
type differences struct {
	unknown []string // keys of objects that the catalog does not name
	foreign []string // keys that no object of a hub has
	lost    []lost
}

// compareBatch is the number of objects that are compared at a time.
const compareBatch = 1000

// compare compares bucket and catalog after a key. It calls fn with some objects at a time: the key
// of the last one, their number, and what is wrong with them.
func (c *Checker) compare(
	ctx context.Context, after string, fn func(last string, n int, d *differences) error,
) error {
	var d differences
	n, last := 0, ""
	flush := func() error {
		if n == 0 {
			return nil
		}
		if err := c.confirmUnknown(ctx, &d); err != nil {
			return err
		}
		err := fn(last, n, &d)
		n, d = 0, differences{}
		return err
	}
	for p, err := range c.pairs(ctx, after) {
		if err == nil {
			err = c.compareOne(ctx, p, &d)
		}
		if err != nil {
			return err
		}
		if n, last = n+1, p.key; n == compareBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

func (c *Checker) compareOne(ctx context.Context, p pair, d *differences) error {
	o, ours := parse(p.key)
	switch {
	case !ours:
		d.foreign = append(d.foreign, p.key)
	case p.stored && !p.known:
		if time.Since(p.made) >= c.MinAge {
			d.unknown = append(d.unknown, p.key)
		}
	case p.stored && (p.want < 0 || p.size == p.want):
	default:
		why, err := c.confirmLost(ctx, o)
		if err != nil {
			return err
		}
		if why != "" {
			d.lost = append(d.lost, lost{o, why})
		}
	}
	return nil
}

// confirmUnknown removes those objects from d.unknown that a publisher has claimed, or that the
// catalog knows by now.
func (c *Checker) confirmUnknown(ctx context.Context, d *differences) error {
	claimed, err := c.Catalog.Claims.Among(ctx, d.unknown)
	if err != nil {
		return err
	}
	var confirmed []string
	for _, key := range d.unknown {
		if claimed[key] {
			continue
		}
		known, err := c.Publisher.Knows(ctx, key)
		if err != nil {
			return err
		}
		if !known {
			confirmed = append(confirmed, key)
		}
	}
	d.unknown = confirmed
	return nil
}

// confirmLost says what is wrong with an object that the catalog names. It returns "" if nothing
// is.
func (c *Checker) confirmLost(ctx context.Context, o object) (string, error) {
	return c.confirm(ctx, o, func(want int64) (string, error) {
		size, err := c.Objects.Size(ctx, o.key)
		switch {
		case errors.Is(err, objects.ErrNotFound):
			return "is missing", nil
		case err != nil:
			return "", err
		case want < 0 || size == want:
			return "", nil
		}
		// Another version's compressor may give another size: the object is fine if it can be read.
		if _, err := c.read(ctx, o); err != nil {
			return fmt.Sprintf("has %d bytes, want %d", size, want), c.transient(ctx, err)
		}
		return "", nil
	})
}

// confirm calls look, which says what is wrong with an object that the catalog names with a size.
// It returns "" if the catalog does not name the object any more. It looks again if the catalog has
// changed meanwhile, and while a publisher has claimed the object. A publisher that was stopped
// keeps its claim for a lease, and another process finds that out within half a lease. An object
// that is claimed for longer is what look says.
func (c *Checker) confirm(
	ctx context.Context, o object, look func(size int64) (why string, err error),
) (string, error) {
	lease := c.Publisher.Lease
	size, err := c.Catalog.Checks.ObjectSize(ctx, o.kind, o.id)
	for end := time.Now().Add(2 * lease); err == nil; {
		why, lookErr := look(size)
		if why == "" || lookErr != nil {
			return "", lookErr
		}
		claimed, claimErr := c.Catalog.Claims.Among(ctx, []string{o.key})
		if claimErr != nil {
			return "", claimErr
		}
		before := size
		size, err = c.Catalog.Checks.ObjectSize(ctx, o.kind, o.id)
		if err != nil {
			break
		}
		if !claimed[o.key] && size == before || time.Now().After(end) {
			return why, nil
		}
		if !sleep.For(ctx, lease/60) {
			return "", context.Cause(ctx)
		}
	}
	if errors.Is(err, catalog.ErrNotFound) {
		return "", nil
	}
	return "", err
}
