package fsck

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/hub/objects"
)

// transient returns err if it says nothing about what was read: the job was interrupted, it was
// stopped until its claim of objects had ended, or a store is away. Otherwise it returns nil.
func (c *Checker) transient(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, catalog.ErrClaimLost):
		return err
	case c.isAway(ctx, err):
		return away.Confirm(err)
	}
	return nil
}

// damage reads an object that the catalog names, and says what is wrong with it. It returns "" if
// nothing is. n is the number of bytes read.
func (c *Checker) damage(ctx context.Context, o object) (why string, n int64, err error) {
	why, err = c.confirm(ctx, o, func(int64) (string, error) {
		read, err := c.read(ctx, o)
		n += read
		if err == nil {
			return "", nil
		}
		return err.Error(), c.transient(ctx, err)
	})
	return why, n, err
}

// read reads an object and compares it with its name. It returns the number of bytes read.
func (c *Checker) read(ctx context.Context, o object) (n int64, err error) {
	return away.Retry(ctx, c.isAway, func() (int64, error) { return c.readOnce(ctx, o) })
}

func (c *Checker) readOnce(ctx context.Context, o object) (n int64, err error) {
	stored, err := c.Objects.Open(ctx, o.key)
	if err != nil {
		return 0, err
	}
	n = stored.Size
	if o.kind == catalog.Packs {
		defer stored.Close()
		return n, compareSum(stored, o.id)
	}
	if err := stored.Close(); err != nil {
		return n, err
	}
	if o.kind == catalog.Records {
		return n, c.readRecord(ctx, o)
	}
	plain, err := c.Objects.OpenPlain(ctx, o.key)
	if err != nil {
		return n, err
	}
	defer plain.Close()
	if o.kind == catalog.Locations {
		return n, compareSum(plain, o.id)
	}
	if _, err := index.Receive(plain, o.id, io.Discard, io.Discard); err != nil {
		return n, err
	}
	return n, nil
}

// compareSum compares the digest of what r has with an ID.
func compareSum(r io.Reader, id chunk.ID) error {
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return err
	}
	if got := chunk.ID(sum.Sum(nil)); got != id {
		return fmt.Errorf("the digest of its bytes is %s", got.Short())
	}
	return nil
}

// chunksBatch is the number of chunks in one query of the catalog.
const chunksBatch = 500

// readRecord reads the record of a layer. The catalog has no digest of it. So readRecord compares
// the number of its entries with the catalog's, and checks that the catalog knows its chunks.
func (c *Checker) readRecord(ctx context.Context, o object) error {
	want, err := c.Catalog.Repairs.LayerEntries(ctx, diffIDOf(o.id))
	if err != nil {
		return err
	}
	var ids []chunk.ID
	flush := func() error {
		known, err := c.Catalog.Numbers(ctx, ids)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if known[id] == 0 {
				return fmt.Errorf("it names chunk %s, which the catalog does not know", id.Short())
			}
		}
		ids = ids[:0]
		return nil
	}
	record := ingest.Record{Open: func() (io.ReadCloser, error) {
		return c.Objects.OpenPlain(ctx, objects.LayerKey(diffIDOf(o.id)))
	}}
	defer record.Close()
	entries := int64(0)
	for {
		e, err := record.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		entries++
		for _, extent := range e.Content.Extents {
			if extent.ID == (chunk.ID{}) {
				continue
			}
			if ids = append(ids, extent.ID); len(ids) == chunksBatch {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	if entries != want {
		return fmt.Errorf("it has %d entries, the catalog says %d", entries, want)
	}
	return flush()
}
