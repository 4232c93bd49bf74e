package publish

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/hub/objects"
)

// stores are a publisher and the stores that it publishes to.
type stores struct {
	*Publisher
	catalog *catalog.Catalog
}

// open opens the stores in dir, which another publisher may have left.
func open(t *testing.T, dir string) stores {
	t.Helper()
	scratch := filepath.Join(dir, "scratch")
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := catalog.Open(t.Context(), filepath.Join(dir, "catalog.db"))
	if err != nil {
		t.Fatal(err)
	}
	o, err := objects.Open(t.Context(), "file://"+filepath.Join(dir, "objects"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(c.Close(), o.Close()) })
	return stores{New(c, o, scratch, slog.New(slog.DiscardHandler)), c}
}

// staged writes the files of a pack and an index.
func staged(t *testing.T, s stores) (packs, others []objects.Staged, id chunk.ID) {
	t.Helper()
	id = chunk.Sum([]byte(t.Name()))
	for _, key := range []string{objects.PackKey(id), objects.IndexKey(id)} {
		path := filepath.Join(s.scratch, strings.ReplaceAll(key, "/", "-"))
		if err := os.WriteFile(path, []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
		others = append(others, objects.Staged{Key: key, Path: path})
	}
	return others[:1], others[1:], id
}

func (s stores) published(id chunk.ID) (n int) {
	for _, key := range []string{objects.PackKey(id), objects.IndexKey(id)} {
		if o, err := s.objects.Open(context.Background(), key); err == nil {
			_ = o.Close()
			n++
		}
	}
	return n
}

func leftIn(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// After a crash between the two phases, Recover deletes the objects that the catalog does not know,
// and keeps the others.
func TestKilledBetweenObjectsAndCatalog(t *testing.T) {
	for name, known := range map[string]bool{"before the commit": false, "after the commit": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			packs, others, id := staged(t, s)
			killed(func() {
				_ = s.Publish(context.Background(), Objects{Packs: packs, Others: others}, func() error {
					if known {
						if err := s.catalog.Publish(context.Background(),
							&catalog.Publication{Packs: []catalog.Pack{{ID: id}}, Tree: catalog.Tree{ID: id},
								Layers: []catalog.Layer{{DiffID: "l"}},
								Blobs:  []catalog.Blob{{Digest: "b", DiffID: "l", Chain: "c"}},
								Statement: index.Statement{Chain: "c", Tree: id, Format: index.Format,
									Signature: []byte("s")}}); err != nil {
							t.Error(err)
						}
					}
					runtime.Goexit() // skips the rest of Publish, as a crash does
					return nil
				})
			})
			wantObjects(t, s, map[string]bool{packs[0].Key: true, others[0].Key: true})
			wantObjects(t, recovered(t, dir), map[string]bool{packs[0].Key: known, others[0].Key: known})
		})
	}
}

// The same holds for a crash while a tree's startup packs are replaced, or while retired ones are
// deleted.
func TestKilledBetweenStartupPacksAndCatalog(t *testing.T) {
	for name, known := range map[string]bool{"before the commit": false, "after the commit": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			tree := addTree(t, s)
			before, pack := layout(t, s, tree, "before")
			if err := s.Publish(t.Context(), Objects{Packs: before.files[:1], Others: before.files[1:]}, func() error {
				return s.catalog.SetLayout(t.Context(), &before.Layout)
			}); err != nil {
				t.Fatal(err)
			}
			after, next := layout(t, s, tree, "after")
			killed(func() {
				_ = s.Publish(context.Background(),
					Objects{Packs: after.files[:1], Others: after.files[1:], Replaced: []string{before.files[1].Key}},
					func() error {
						if known {
							if err := s.catalog.SetLayout(context.Background(), &after.Layout); err != nil {
								t.Error(err)
							}
						}
						runtime.Goexit()
						return nil
					})
			})
			s = recovered(t, dir)
			wantObjects(t, s, map[string]bool{objects.PackKey(pack): true, objects.PackKey(next): known,
				before.files[1].Key: !known, after.files[1].Key: known})
			if !known {
				return
			}
			for _, forgotten := range []bool{false, true} {
				killed(func() {
					_ = s.Delete(context.Background(), []string{objects.PackKey(pack)}, func() error {
						if forgotten {
							if err := s.catalog.DropRetired(context.Background(), []chunk.ID{pack, next}); err != nil {
								t.Error(err)
							}
						}
						runtime.Goexit()
						return nil
					})
				})
				s = recovered(t, dir)
				wantObjects(t, s, map[string]bool{objects.PackKey(pack): !forgotten, objects.PackKey(next): true})
			}
		})
	}
}

// killed runs fn until fn ends its goroutine, as a crash does.
func killed(fn func()) {
	died := make(chan struct{})
	go func() {
		defer close(died)
		fn()
	}()
	<-died
}

func recovered(t *testing.T, dir string) stores {
	t.Helper()
	s := open(t, dir)
	s.Recover(t.Context())
	if left := leftIn(t, s.scratch); len(left) > 0 {
		t.Errorf("scratch directory has %v, want it empty", left)
	}
	return s
}

func wantObjects(t *testing.T, s stores, want map[string]bool) {
	t.Helper()
	for key, there := range want {
		o, err := s.objects.Open(t.Context(), key)
		if err == nil {
			_ = o.Close()
		}
		if (err == nil) != there {
			t.Errorf("%s exists: %t, want %t", key, err == nil, there)
		}
	}
}

// addTree adds a tree to the catalog.
func addTree(t *testing.T, s stores) chunk.ID {
	t.Helper()
	tree := chunk.Sum([]byte("tree"))
	if err := s.catalog.Publish(t.Context(), &catalog.Publication{Tree: catalog.Tree{ID: tree,
		Locations: chunk.Sum(nil)},
		Layers: []catalog.Layer{{DiffID: "l"}}, Blobs: []catalog.Blob{{Digest: "b", DiffID: "l", Chain: "c"}},
		Statement: index.Statement{Chain: "c", Tree: tree, Format: index.Format, Signature: []byte("s")}}); err != nil {
		t.Fatal(err)
	}
	return tree
}

type stagedLayout struct {
	catalog.Layout
	files []objects.Staged // a pack and the locations
}

// layout stages a layout of one pack.
func layout(t *testing.T, s stores, tree chunk.ID, name string) (l stagedLayout, pack chunk.ID) {
	t.Helper()
	pack = chunk.Sum([]byte(name))
	l.Layout = catalog.Layout{Tree: tree, Locations: chunk.Sum([]byte("locations " + name)), Startup: []byte(name),
		Packs: []catalog.StartupPack{{ID: pack, Size: 4}}}
	for _, key := range []string{objects.PackKey(pack), objects.LocationsKey(l.Locations)} {
		path := filepath.Join(s.scratch, strings.ReplaceAll(key, "/", "-"))
		if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
			t.Fatal(err)
		}
		l.files = append(l.files, objects.Staged{Key: key, Path: path})
	}
	return l, pack
}

// A publication that fails in either phase leaves no objects.
func TestFailedPublicationLeavesNothing(t *testing.T) {
	s := open(t, t.TempDir())
	for name, fail := range map[string]func() error{
		"catalog": func() error { return syscall.ENOSPC },
		"objects": nil,
	} {
		packs, others, id := staged(t, s)
		if fail == nil {
			others[0].Path += "-gone"
		}
		err := s.Publish(t.Context(), Objects{Packs: packs, Others: others}, fail)
		if err == nil || fail != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", name, err)
		}
		if n := s.published(id); n != 0 {
			t.Errorf("%s: %d objects exist, want none", name, n)
		}
		_ = os.Remove(packs[0].Path)
		_ = os.Remove(strings.TrimSuffix(others[0].Path, "-gone"))
	}
	if left := leftIn(t, s.scratch); len(left) > 0 {
		t.Errorf("scratch directory has %v, want it empty", left)
	}
}

// Recover deletes only objects that a journal names in full. A journal whose objects cannot be
// deleted stays, and does not fail Recover.
func TestRecoverIsCareful(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	packs, others, id := staged(t, s)
	if err := s.objects.Publish(t.Context(), slices.Concat(packs, others)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"journal-torn": "packs/ab12",
		"journal-odd": "catalog.db\n../x\npacks/\n\x00", "image-1": ""} {
		if err := os.WriteFile(filepath.Join(s.scratch, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.Recover(t.Context())
	if left := leftIn(t, s.scratch); len(left) > 0 || s.published(id) != 2 {
		t.Errorf("scratch directory has %v, want it empty; %d of 2 objects exist", left, s.published(id))
	}
	journal, err := writeJournal(s.scratch, []string{packs[0].Key})
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s.Recover(gone)
	if _, err := os.Stat(journal); err != nil {
		t.Errorf("journal after a failed Recover: %v, want it to stay", err)
	}
}
