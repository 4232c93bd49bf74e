package trees

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/tree"
	"lighter/node/prefetch"
)

// fakeHub is a source with the index of one tree, whose extent map has two pages.
type fakeHub struct {
	tree           chunk.ID
	index          []byte
	changing       sync.Mutex // guards locations while the node asks for them in the background
	locations      []byte
	otherLocations [][]byte     // locations of other origins, which are asked first
	asked          atomic.Int32 // number of requests for an index
	askedLocations atomic.Int32 // number of requests for locations

	otherIndexes   [][]byte    // indexes of other origins, which are asked first
	stallAt        int64       // the index stops arriving after this many bytes; 0: it arrives whole
	noLocations    atomic.Bool // requests for locations fail
	skipsCurrent   bool        // the hub sends no locations to a node whose locations are current
	moreLocations  io.Reader   // bytes that the hub sends after the locations; nil: none
	locationsStall bool        // locations stop arriving after 60 bytes
}

func newHub(t *testing.T) *fakeHub { return newHubOf(t, "file", someChunk) }

func someChunk(i int) chunk.ID { return chunk.Sum([]byte{byte(i)}) }

// newHubOf returns a hub with a tree of one file. The file consists of 100 chunks of 4 KiB, with
// the IDs that id returns.
func newHubOf(t *testing.T, name string, id func(i int) chunk.ID) *fakeHub {
	t.Helper()
	file := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1}
	for i := range 100 {
		file.Content.Extents = append(file.Content.Extents, tree.Extent{ID: id(i), Length: 4096})
		file.Size += 4096
	}
	root := tree.NewDir(tree.Node{Mode: 0o755}, []tree.Dirent{{Name: name, Node: file}})
	var metadata, whole bytes.Buffer
	made, err := index.Make(&tree.Tree{Root: root}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Write(&whole, bytes.NewReader(metadata.Bytes())); err != nil {
		t.Fatal(err)
	}
	h := &fakeHub{tree: made.ID(), index: whole.Bytes()}
	locations := index.NewLocations(h.tree)
	for range made.Extents {
		locations.Add(chunk.Unit{Pack: chunk.Sum([]byte("pack"))})
	}
	h.locations = locations.Encode()
	return h
}

// sign edits the hub's metadata image, and makes the index and the tree ID fit to it.
func (h *fakeHub) sign(edit func(metadata []byte)) {
	size := int(binary.LittleEndian.Uint64(h.index[80:])) // docs/format.md, "Index"
	metadata := h.index[len(h.index)-size:]
	edit(metadata)
	digest := sha256.Sum256(metadata)
	copy(h.index[16:], digest[:])
	h.tree = sha256.Sum256(h.index[:256])
}

// stalled returns the bytes of its Reader, and then blocks until ctx is done.
type stalled struct {
	io.Reader
	ctx context.Context
}

func (s stalled) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if err == io.EOF {
		<-s.ctx.Done()
		return 0, context.Cause(s.ctx)
	}
	return n, err
}

func (h *fakeHub) Index(ctx context.Context, id chunk.ID, take func(io.Reader) error) error {
	h.asked.Add(1)
	if id != h.tree {
		return chunk.ErrNotFound
	}
	for _, bad := range h.otherIndexes {
		if err := take(bytes.NewReader(bad)); err == nil {
			return err
		}
	}
	if h.stallAt > 0 {
		return take(stalled{bytes.NewReader(h.index[:h.stallAt]), ctx})
	}
	return take(bytes.NewReader(h.index))
}

func (h *fakeHub) Locations(ctx context.Context, id, have chunk.ID, take func(io.Reader) error) error {
	h.askedLocations.Add(1)
	h.changing.Lock()
	locations := h.locations
	h.changing.Unlock()
	if !have.IsZero() && h.skipsCurrent && have == chunk.Sum(locations) {
		return nil
	}
	if h.locationsStall {
		return take(stalled{bytes.NewReader(locations[:60]), ctx})
	}
	if h.noLocations.Load() {
		return errors.New("not today")
	}
	for _, bad := range h.otherLocations {
		if err := take(bytes.NewReader(bad)); !errors.As(err, new(*chunk.InvalidError)) {
			return err
		}
	}
	if h.moreLocations != nil {
		return take(io.MultiReader(bytes.NewReader(locations), h.moreLocations))
	}
	return take(bytes.NewReader(locations))
}

// openTrees returns an empty store whose source is the hub.
func openTrees(t *testing.T, h *fakeHub) *Store {
	t.Helper()
	root := t.TempDir()
	if err := Prepare(root); err != nil {
		t.Fatal(err)
	}
	return openAt(root, h)
}

// openAt opens a store whose root exists.
func openAt(root string, h *fakeHub) *Store {
	log := slog.New(slog.DiscardHandler)
	return Open(root, h, noServer{}, prefetch.New(func() prefetch.Source { return nil }, prefetch.Options{}, log), log)
}

// remove removes a tree as package mount does.
func remove(trees *Store, tree chunk.ID) error {
	defer trees.Lock(tree)()
	return trees.Discard(tree)
}

// files lists the files below trees/.
func files(t *testing.T, trees *Store) (found []string) {
	t.Helper()
	top := filepath.Join(trees.root, "trees")
	err := filepath.WalkDir(top, func(path string, _ os.DirEntry, err error) error {
		if path != top {
			found = append(found, strings.TrimPrefix(path, top+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// whole returns what files returns for a store with only the hub's tree.
func (h *fakeHub) whole() []string {
	dir := h.tree.String()
	return []string{dir, dir + "/locations", dir + "/map", dir + "/metadata"}
}

// Ensure fetches an index once. Discard removes all files of the tree.
func TestEnsure(t *testing.T) {
	h := newHub(t)
	trees := openTrees(t, h)
	var begun atomic.Int32
	for range 3 {
		if err := trees.Ensure(t.Context(), h.tree, func() { begun.Add(1) }); err != nil {
			t.Fatal(err)
		}
	}
	if h.asked.Load() != 1 || begun.Load() == 0 || !trees.Has(h.tree) {
		t.Errorf("asked %d times, begun %d times; want one request, and begun to be called", h.asked.Load(),
			begun.Load())
	}
	if got := files(t, trees); !slices.Equal(got, h.whole()) {
		t.Errorf("files %q, want %q", got, h.whole())
	}
	if list, err := trees.List(); err != nil || len(list) != 1 || list[0] != h.tree {
		t.Errorf("trees %v, %v; want only %s", list, err, h.tree)
	}
	if bytes, n := trees.Size(h.tree); n != 4 || bytes < int64(len(h.index)) || bytes%4096 != 0 {
		t.Errorf("the tree has %d bytes in %d inodes, want at least %d in 4", bytes, n, len(h.index))
	}
	if err := remove(trees, h.tree); err != nil || trees.Has(h.tree) || len(files(t, trees)) != 0 {
		t.Errorf("after the removal: %v, files %q; want none", err, files(t, trees))
	}
	if err := remove(trees, h.tree); err != nil {
		t.Errorf("second removal: got %v, want no error", err)
	}
	begins := func() { t.Error("begun was called for an unknown tree") }
	if err := trees.Ensure(t.Context(), chunk.Sum(nil), begins); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("an unknown tree: got %v, want ErrNotFound", err)
	}
}

// An invalid index is refused, and none of its files stays.
func TestIndexThatIsWrong(t *testing.T) {
	for name, spoil := range map[string]func(h *fakeHub){
		"header":   func(h *fakeHub) { h.index[20] ^= 1 },
		"metadata": func(h *fakeHub) { h.index[len(h.index)-1] ^= 1 },
		"end":      func(h *fakeHub) { h.index = h.index[:len(h.index)-1] },
		// These metadata images have valid digests, but could confuse a kernel.
		"signed": func(h *fakeHub) { h.sign(func(metadata []byte) { metadata[4096+8] = 7 }) },
		"hidden": func(h *fakeHub) {
			h.sign(func(metadata []byte) { copy(metadata[bytes.Index(metadata, []byte("file")):], "fi/e") })
		},
	} {
		h := newHub(t)
		spoil(h)
		trees := openTrees(t, h)
		err := trees.Ensure(t.Context(), h.tree, func() {
			if name == "header" {
				t.Error("begun was called with an invalid header")
			}
		})
		if err == nil || trees.Has(h.tree) || len(files(t, trees)) != 0 {
			t.Errorf("%s: got error %v and files %q, want an error and no files", name, err, files(t, trees))
		}
	}
}

// A metadata image that was not checked when it was fetched is checked when it is opened. An
// invalid one is not fetched again, because the hub would send the same bytes.
func TestIndexThatWasNotChecked(t *testing.T) {
	h := newHub(t)
	h.sign(func(metadata []byte) { metadata[4096+8] = 7 })
	trees := openTrees(t, h)
	var extents, metadata bytes.Buffer
	if _, err := index.Receive(bytes.NewReader(h.index), h.tree, &extents, &metadata); err != nil {
		t.Fatal(err)
	}
	dir := trees.dir(h.tree)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "map"), extents.Bytes(), 0o400),
		os.WriteFile(filepath.Join(dir, "metadata"), metadata.Bytes(), 0o400)); err != nil {
		t.Fatal(err)
	}
	if _, err := trees.openVerified(t.Context(), h.tree); err == nil ||
		!strings.Contains(err.Error(), "the signed index is invalid") || !trees.Has(h.tree) || h.asked.Load() != 0 {
		t.Errorf("got error %v, asked %d times; want that the signed index is invalid, and 0", err,
			h.asked.Load())
	}
}

// If an origin sends a part of an index or a damaged one, the index is fetched from another origin.
func TestIndexFromAnotherOrigin(t *testing.T) {
	h := newHub(t)
	flipped := bytes.Clone(h.index)
	flipped[len(flipped)-1] ^= 1
	h.otherIndexes = [][]byte{h.index[:len(h.index)-10], flipped, nil}
	trees := openTrees(t, h)
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, trees); !slices.Equal(got, h.whole()) {
		t.Errorf("files %q, want %q", got, h.whole())
	}
	m, err := trees.openVerified(t.Context(), h.tree)
	if err != nil {
		t.Fatal(err)
	}
	m.close()
}

// If its caller cancels, Ensure ends the download, returns the cause and leaves no file.
func TestEnsureIsCancelled(t *testing.T) {
	h := newHub(t)
	h.stallAt = int64(len(h.index)) - 1
	trees := openTrees(t, h)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		if err := trees.Ensure(ctx, h.tree, func() { cancel(why) }); !errors.Is(err, why) {
			t.Errorf("error %v, want the cause %q", err, why)
		}
		synctest.Wait()
	})
	if len(files(t, trees)) != 0 {
		t.Errorf("files %q are left, want none", files(t, trees))
	}
}

// An index is published without its locations if these are wrong or do not arrive within
// hintTimeout.
func TestLocationsThatAreWrong(t *testing.T) {
	for name, spoil := range map[string]func(h *fakeHub){
		"refused": func(h *fakeHub) { h.noLocations.Store(true) },
		"of another tree": func(h *fakeHub) {
			h.locations = index.NewLocations(chunk.Sum(nil)).Encode()
		},
		"endless": func(h *fakeHub) { h.locations = append(h.locations, make([]byte, 1<<20)...) },
		"stalled": func(h *fakeHub) { h.locationsStall = true },
	} {
		h := newHub(t)
		spoil(h)
		trees := openTrees(t, h)
		synctest.Test(t, func(t *testing.T) {
			start := time.Now() // by the clock of the test
			if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil || time.Since(start) > hintTimeout {
				t.Errorf("%s: after %s: %v, want success within %s", name, time.Since(start), err, hintTimeout)
			}
		})
		want := slices.DeleteFunc(h.whole(), func(s string) bool { return strings.HasSuffix(s, "locations") })
		if got := files(t, trees); !slices.Equal(got, want) {
			t.Errorf("%s: files %q, want %q", name, got, want)
		}
		m, err := trees.openVerified(t.Context(), h.tree)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		m.close()
	}
}

// If an origin sends locations that are invalid or of another tree, they are fetched from another
// origin.
func TestLocationsOfAnotherOrigin(t *testing.T) {
	h := newHub(t)
	h.otherLocations = [][]byte{nil, []byte("<html>"), index.NewLocations(chunk.Sum(nil)).Encode(),
		h.locations[:len(h.locations)-1]}
	trees := openTrees(t, h)
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, trees); !slices.Equal(got, h.whole()) {
		t.Errorf("files %q, want %q", got, h.whole())
	}
}

// zeros is an endless stream of zeros, which counts the bytes that were read.
type zeros struct{ read atomic.Int64 }

func (z *zeros) Read(b []byte) (int, error) {
	clear(b)
	z.read.Add(int64(len(b)))
	return len(b), nil
}

// Locations are read only when the header of the index has arrived and was verified. No more bytes
// are read than locations can have for the header's number of extents.
func TestLocationsAreBoundedByTheHeader(t *testing.T) {
	for name, c := range map[string]struct {
		arrive int64 // bytes of the index that arrive; 0: all
		most   int64 // maximum bytes of locations that are read
	}{
		"no header":          {255, 0},
		"header and no more": {256, index.MaxLocations(100)},
		"index":              {0, index.MaxLocations(100)},
	} {
		t.Run(name, func(t *testing.T) {
			h, endless := newHub(t), &zeros{}
			h.stallAt, h.locations, h.moreLocations = c.arrive, nil, endless
			trees := openTrees(t, h)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := trees.Ensure(ctx, h.tree, func() {})
				synctest.Wait()
				if (err == nil) != (c.arrive == 0) {
					t.Error(err)
				}
			})
			if n := endless.read.Load(); n > c.most {
				t.Errorf("%d bytes were read, want at most %d", n, c.most)
			}
			for _, name := range files(t, trees) {
				if strings.HasSuffix(name, "locations") {
					t.Errorf("file %s has invalid locations, want it removed", name)
				}
			}
		})
	}
}
