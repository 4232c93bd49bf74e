package direct

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/format/attached"
	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/layer"
	"lighter/format/tree"
	"lighter/store"
	"lighter/store/attachment"
	"lighter/store/repository"
)

// maxLocations bounds the locations of an attached index, in bytes: those of 60,000,000 extents.
const maxLocations = 512 << 20

const (
	// blobsAtOnce is how many blobs of an artifact are fetched at a time, to files.
	blobsAtOnce = 8
	// expandedAtOnce is how many tables are in memory at a time: 44 bytes for each chunk.
	expandedAtOnce = 2
	// mapPages is the number of cached pages of the extent map meanwhile, of 5 kB each.
	mapPages = 1024
)

// hasKeys is format.counts of attached indexes, which count by their signature.
func (m *Images) hasKeys(string) error {
	if len(m.config.Keys) == 0 {
		return errors.New("no key of attached indexes is believed (attached_keys)")
	}
	return nil
}

// makeAttached is format.make of attached indexes. It fetches what was made elsewhere: the newest
// index that a known key has signed.
func makeAttached(
	ctx context.Context, m *Images, from *repository.Repository, im *read, dir string,
) (made, error) {
	if im.lower { // an attached index is that of all layers
		return makeSurveyed(ctx, m, from, im, dir)
	}
	var chains []*repository.Repository
	for _, name := range m.config.Chains {
		in, err := m.open(name)
		if err != nil {
			return made{}, err
		}
		chains = append(chains, in)
	}
	chain := identity.ChainID(slices.Clone(im.diffIDs)).String()
	listed, err := im.listed()
	if err != nil {
		return made{}, err
	}
	looking, stop := within(ctx, im.lookTime)
	defer stop()
	found, refused, err := attachment.Among(looking, from, listed, im.digest, chain, chains,
		attachment.Trust{Keys: m.config.Keys})
	if err != nil {
		return made{}, err
	}
	for _, f := range found {
		err := m.fetchAttached(ctx, f, im, dir) // replaces what a failed one has left
		if err == nil {
			return made{tree: f.Contents.Tree, packs: f.Contents.Packs, packsIn: f.In.String(),
				by: index.FormatKey(f.By)}, nil
		}
		if !errors.As(err, new(*chunk.InvalidError)) && !errors.Is(err, chunk.ErrNotFound) {
			return made{}, err
		}
		refused = errors.Join(refused, fmt.Errorf("artifact %s in %s: %w", f.Artifact.Digest, f.In, err))
	}
	if refused == nil {
		refused = errors.New("nothing is attached to the image")
	}
	return made{}, notDirect{refused}
}

// surveyTime bounds the time in which layers are read as a whole, in the background.
const surveyTime = 30 * time.Minute

// makeSurveyed is format.make of lower layers: it reads each of them as a whole. Such tables are
// those of the diffIDs.
func makeSurveyed(
	ctx context.Context, m *Images, from *repository.Repository, im *read, dir string,
) (made, error) {
	if err := m.surveying.Acquire(ctx, 1); err != nil { // it may take minutes, and pulls do not wait for it
		return made{}, err
	}
	defer m.surveying.Release(1)
	layers, err := eachLayer(ctx, im.layers, func(ctx context.Context, i int, _ v1.Descriptor) (*mapped, error) {
		return m.surveyLayer(ctx, from, im, i)
	})
	if err != nil {
		return made{}, err
	}
	done, err := m.lay(ctx, im, dir, layers)
	done.sums = nil // there is nothing to verify
	return done, err
}

// fetchAttached fetches an index, its locations and its layer tables. The error is a
// *chunk.InvalidError if they are not those of the image, or name bytes that it does not have.
func (m *Images) fetchAttached(ctx context.Context, f attachment.Found, im *read, dir string) error {
	c := f.Contents
	if len(c.Tables) != len(im.layers) {
		return &chunk.InvalidError{What: "attached index",
			Err: fmt.Errorf("it has tables of %d layers, the image has %d", len(c.Tables), len(im.layers))}
	}
	limited, stop := within(ctx, 3*im.lookTime)
	defer stop()
	group, fetching := errgroup.WithContext(limited)
	group.SetLimit(blobsAtOnce)
	group.Go(func() error { return fetchIndex(fetching, f, filepath.Join(dir, "index")) })
	group.Go(func() error {
		return fetchBlob(fetching, f, c.Locations, filepath.Join(dir, "locations"), unzipped)
	})
	for i, d := range c.Tables {
		group.Go(func() error {
			return fetchBlob(fetching, f, d, blobPath(dir, i), func(to io.Writer, r io.Reader) error {
				_, err := io.Copy(to, r)
				return err
			})
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	end, err := m.turns.wait(ctx, f.In) // tables are large
	if err != nil {
		return err
	}
	defer end()
	return finish(ctx, c, im, dir)
}

// blobPath returns the file of the blob of a layer's table, while it waits for the index.
func blobPath(dir string, layer int) string { return tablePath(dir, layer) + ".blob" }

// finish checks the number of entries and the locations, and makes the tables of their blobs. It
// ends with ctx.
func finish(ctx context.Context, c *attached.Contents, im *read, dir string) error {
	file, err := os.Open(filepath.Join(dir, "index"))
	if err != nil {
		return err
	}
	defer file.Close() // only read
	extents, err := index.OpenMap(file, c.Tree, index.NewPages(mapPages))
	if err != nil {
		return err
	}
	inodes, err := extents.Inodes(io.NewSectionReader(file, extents.MapSize(), extents.MetadataSize))
	if err == nil && inodes > uint64(limits.Entries)+1 { // the root is no entry
		err = &chunk.InvalidError{What: "the index of tree " + c.Tree.Short(),
			Err: &tree.LimitError{What: "entries", Limit: limits.Entries}}
	}
	if err != nil {
		return err
	}
	units := make([]int, len(im.layers))
	group, expanding := errgroup.WithContext(ctx)
	group.SetLimit(expandedAtOnce)
	for i, d := range im.layers {
		group.Go(func() (err error) {
			if units[i], err = expandTable(expanding, extents, dir, i, d); err != nil {
				return err
			}
			return os.Remove(blobPath(dir, i))
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	packs, err := unitsOf(im.layers, units, c.Packs)
	if err != nil {
		return err
	}
	return checkLocations(ctx, c, extents.Extents, packs, dir)
}

// expandTable writes the table of layer i, which d describes, and returns the number of its units.
// All of them are within the layer.
func expandTable(ctx context.Context, extents *index.Map, dir string, i int, d v1.Descriptor) (units int, err error) {
	blob, err := os.Open(blobPath(dir, i))
	if err != nil {
		return 0, err
	}
	defer blob.Close() // only read
	wrong := func(err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, new(*fs.PathError)): // of this machine's disk
			return err
		}
		return &chunk.InvalidError{What: fmt.Sprintf("the table of layer %d", i+1), Err: err}
	}
	table, err := attached.ReadTable(ended{ctx, blob}, extents)
	if err != nil {
		return 0, wrong(err)
	}
	path := tablePath(dir, i)
	if err := os.RemoveAll(path); err != nil { // of another artifact, which was wrong
		return 0, err
	}
	if err := create(path, func(to io.Writer) error {
		_, err := table.WriteTo(to)
		return err
	}); err != nil {
		return 0, err
	}
	l, err := openLayer(path, d)
	if err != nil {
		return 0, wrong(err)
	}
	return l.table.Units(), l.file.Close()
}

// ended is a reader that fails once a context has ended.
type ended struct {
	ctx context.Context
	io.Reader
}

func (e ended) Read(b []byte) (int, error) {
	if e.ctx.Err() != nil {
		return 0, context.Cause(e.ctx)
	}
	return e.Reader.Read(b)
}

// unitsOf returns how many units each pack of an image has: its layers, with a number of units
// each, and its startup packs.
func unitsOf(layers []v1.Descriptor, units []int, startups []attached.Pack) (map[chunk.ID]int, error) {
	all := map[chunk.ID]int{}
	for i, d := range layers {
		id, err := packOf(d)
		if err != nil {
			return nil, err
		}
		all[id] = max(all[id], units[i])
	}
	for _, p := range startups {
		id, err := packOf(p.Blob)
		if err != nil {
			return nil, err
		}
		all[id] = len(p.Units)
	}
	return all, nil
}

// fetchBlob writes a blob to a new file, through fill, as take does.
func fetchBlob(ctx context.Context, f attachment.Found, d v1.Descriptor, path string,
	fill func(to io.Writer, r io.Reader) error) error {
	return take(ctx, f, d, path, func(r io.Reader) error {
		return create(path, func(to io.Writer) error { return fill(to, r) })
	})
}

// take passes a blob to fill, which writes a file that is not there. The error is a
// *chunk.InvalidError if fill cannot use the blob.
func take(ctx context.Context, f attachment.Found, d v1.Descriptor, path string, fill func(r io.Reader) error) error {
	return f.In.Whole(ctx, d, func(a store.Answer) error {
		if err := os.RemoveAll(path); err != nil { // of an answer that was wrong
			return err
		}
		if err := fill(a.Body); errors.As(err, new(*fs.PathError)) { // of the new file
			return err
		} else if err != nil {
			err = &chunk.InvalidError{What: fmt.Sprintf("blob %s of %s", d.Digest, f.In), Err: err}
			return repository.Judge(a.Body, err)
		}
		_, err := io.Copy(io.Discard, a.Body) // the digest is compared at the end
		return err
	})
}

// unzipped decompresses locations.
func unzipped(to io.Writer, r io.Reader) error {
	z, err := compress.Reader(r)
	if err != nil {
		return err
	}
	defer z.Close()
	n, err := io.Copy(to, io.LimitReader(z, maxLocations+1))
	if err == nil && n > maxLocations {
		err = &chunk.InvalidError{What: "locations", Err: fmt.Errorf("they have more than %d bytes", maxLocations)}
	}
	return err
}

// fetchIndex fetches an index, and verifies it.
func fetchIndex(ctx context.Context, f attachment.Found, path string) error {
	return take(ctx, f, f.Contents.Index, path, func(r io.Reader) error {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(attached.ReadIndex(file, r, f.Contents.Tree), file.Close())
	})
}

// checkLocations returns an error if the file of locations is not that of the index, which has a
// number of extents, or leads to other units than those of the image's packs.
func checkLocations(
	ctx context.Context, c *attached.Contents, extents int64, packs map[chunk.ID]int, dir string,
) error {
	file, err := os.Open(filepath.Join(dir, "locations"))
	if err != nil {
		return err
	}
	defer file.Close() // only read
	info, err := file.Stat()
	if err != nil {
		return err
	}
	locations, err := index.OpenLocations(file, info.Size(), c.Tree, extents)
	if err == nil {
		err = locations.Each(func(extent int64, u chunk.Unit) error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if n, known := packs[u.Pack]; !known || int64(u.N) >= int64(n) {
				return fmt.Errorf("extent %d is in unit %d of pack %s, which the image does not have", extent, u.N,
					u.Pack.Short())
			}
			return nil
		})
	}
	if err == nil {
		err = checkStartups(locations.Startups(), c.Packs)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return &chunk.InvalidError{What: "the locations of tree " + c.Tree.Short(), Err: err}
	}
	return nil
}

// checkStartups returns an error if locations name other startup packs than the artifact has.
func checkStartups(named []index.Startup, packs []attached.Pack) error {
	for _, s := range named {
		isIt := func(p attached.Pack) bool {
			return p.Blob.Digest.Encoded() == s.Pack.String() && slices.Equal(p.Units, s.Units)
		}
		if !slices.ContainsFunc(packs, isIt) {
			return fmt.Errorf("startup pack %s is not one of the artifact's", s.Pack.Short())
		}
	}
	return nil
}

// inLayers returns the unit of a tree's layers that has a chunk. It reads the tables when it is
// first called for a tree, and remembers where their chunks are: about 100 bytes a chunk. So only
// images whose startup packs are lost need this memory.
func (t *keptTree) inLayers(id chunk.ID) (chunk.Unit, error) {
	places, err := t.places()
	if err != nil {
		return chunk.Unit{}, err
	}
	for _, p := range places {
		if n, found := p.Units[id]; found {
			return chunk.Unit{Pack: p.Blob, N: n}, nil
		}
	}
	return chunk.Unit{}, fmt.Errorf("chunk %s: no layer has it: %w", id.Short(), chunk.ErrNotFound)
}

// readPlaces reads where the chunks of layers are.
func readPlaces(layers []*keptLayer) (all []layer.Places, err error) {
	for _, l := range layers {
		p, err := l.table.Places()
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}
