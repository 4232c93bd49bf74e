package publish

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/test/testkit/catalogtest"
)

// hub is a publisher with its stores.
type hub struct {
	*Publisher
	catalog *catalog.Catalog
}

// open opens the stores in dir. An earlier publisher may have left objects and claims there.
func open(t *testing.T, dir string) hub {
	t.Helper()
	scratch := filepath.Join(dir, "scratch")
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		t.Fatal(err)
	}
	c := catalogtest.Open(t, filepath.Join(dir, "catalog.db"))
	o, err := objects.Open(t.Context(), "file://"+filepath.Join(dir, "objects"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return hub{New(c, o, scratch, "process", slog.New(slog.DiscardHandler)), c}
}

// staged writes the files of a pack and an index.
func staged(t *testing.T, s hub) (files []objects.Staged, id chunk.ID) {
	t.Helper()
	id = chunk.Sum([]byte(t.Name()))
	for _, key := range []string{objects.PackKey(id), objects.IndexKey(id)} {
		path := filepath.Join(s.scratch, strings.ReplaceAll(key, "/", "-"))
		if err := os.WriteFile(path, []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, objects.Staged{Key: key, Path: path})
	}
	return files, id
}

// publication has the rows of the files that staged returns.
func publication(claim catalog.Claim, id chunk.ID) *catalog.Publication {
	return &catalog.Publication{Claim: claim, Packs: []catalog.Pack{{ID: id}}, Tree: catalog.Tree{ID: id},
		Layers: []catalog.Layer{{DiffID: "l"}}, Blobs: []catalog.Blob{{Digest: "b", DiffID: "l", Chain: "c"}},
		Statement: index.Statement{Chain: "c", Tree: id, Format: index.Format, Signature: []byte("s")}}
}

// published counts the objects of staged that exist.
func (s hub) published(id chunk.ID) (n int) {
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
			files, id := staged(t, s)
			killed(func() {
				_ = s.Publish(context.Background(), Objects{Staged: files}, func(claim catalog.Claim) error {
					if known {
						if err := s.catalog.Publish(context.Background(), publication(claim, id)); err != nil {
							t.Error(err)
						}
					}
					runtime.Goexit() // skips the rest of Publish, as a crash does
					return nil
				})
			})
			if n := s.published(id); n != 2 {
				t.Fatalf("%d objects were published, want 2", n)
			}
			again := recovered(t, dir)
			if n := again.published(id); known && n != 2 || !known && n != 0 {
				t.Errorf("%d of 2 objects exist after the restart, want all if the catalog knows them (%t), else none",
					n, known)
			}
		})
	}
}

// After a crash while a tree's startup packs are replaced, or while retired packs are deleted, the
// objects that the catalog knows exist, and no others.
func TestKilledBetweenStartupPacksAndCatalog(t *testing.T) {
	for name, known := range map[string]bool{"before the commit": false, "after the commit": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			tree := addTree(t, s)
			before, pack := layout(t, s, tree, "before")
			if err := s.Publish(t.Context(), Objects{Staged: before.files}, func(claim catalog.Claim) error {
				before.Claim = claim
				return s.catalog.Starts.SetLayout(t.Context(), &before.Layout)
			}); err != nil {
				t.Fatal(err)
			}
			after, next := layout(t, s, tree, "after")
			killed(func() {
				_ = s.Publish(context.Background(),
					Objects{Staged: after.files, Replaced: []string{before.files[1].Key}},
					func(claim catalog.Claim) error {
						if known {
							after.Claim = claim
							if err := s.catalog.Starts.SetLayout(context.Background(), &after.Layout); err != nil {
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
					deleted := []string{objects.PackKey(pack)}
					_ = s.Delete(context.Background(), deleted, func(claim catalog.Claim) error {
						if forgotten {
							ids := []chunk.ID{pack, next}
							if err := s.catalog.Starts.DropRetired(context.Background(), claim, ids); err != nil {
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

func recovered(t *testing.T, dir string) hub {
	t.Helper()
	s := open(t, dir)
	s.Recover(t.Context())
	if left := leftIn(t, s.scratch); len(left) > 0 {
		t.Errorf("scratch directory has %v, want it empty", left)
	}
	return s
}

func wantObjects(t *testing.T, s hub, want map[string]bool) {
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
func addTree(t *testing.T, s hub) chunk.ID {
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
func layout(t *testing.T, s hub, tree chunk.ID, name string) (l stagedLayout, pack chunk.ID) {
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
	for name, fail := range map[string]func(catalog.Claim) error{
		"catalog": func(catalog.Claim) error { return syscall.ENOSPC },
		"objects": nil,
	} {
		files, id := staged(t, s)
		if fail == nil {
			files[1].Path += "-gone"
		}
		err := s.Publish(t.Context(), Objects{Staged: files}, fail)
		if err == nil || fail != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: publish returned %v, want its error", name, err)
		}
		if n := s.published(id); n != 0 {
			t.Errorf("%s: %d objects exist, want none", name, n)
		}
		_ = os.Remove(files[0].Path)
		_ = os.Remove(strings.TrimSuffix(files[1].Path, "-gone"))
	}
	if left := leftIn(t, s.scratch); len(left) > 0 {
		t.Errorf("scratch directory has %v, want it empty", left)
	}
}

// A Recover that fails keeps its claims for the next one. Recover keeps the claims of other
// processes, and ignores keys of no known form.
func TestRecoverIsCareful(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	files, id := staged(t, s)
	if err := s.objects.Publish(t.Context(), files); err != nil {
		t.Fatal(err)
	}
	keys := []string{"catalog.db", "../x", "packs/", "packs/ab12", files[0].Key}
	ended := catalog.Claim{Owner: "process/1", Keys: keys}
	if err := s.catalog.Claims.Acquire(t.Context(), ended, defaultLease); err != nil {
		t.Fatal(err)
	}
	other := catalog.Claim{Owner: "process2/1", Keys: []string{files[1].Key}}
	if err := s.catalog.Claims.Acquire(t.Context(), other, defaultLease); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s.Recover(gone)
	if n := s.published(id); n != 2 {
		t.Errorf("%d objects exist after a failed Recover, want 2", n)
	}
	s = recovered(t, dir)
	if n := s.published(id); n != 1 {
		t.Errorf("%d objects exist, want that of the other process", n)
	}
	if err := s.catalog.Claims.Extend(t.Context(), other, defaultLease); err != nil {
		t.Errorf("the other process has lost its claim: %v", err)
	}
}

// Two publications of the same object wait for each other: one that fails does not delete what the
// other one has published.
func TestPublicationsOfTheSameObject(t *testing.T) {
	s := open(t, t.TempDir())
	files, id := staged(t, s)
	again, _ := staged(t, s)
	for i := range again { // files of their own
		again[i].Path += "-again"
		if err := os.WriteFile(again[i].Path, []byte(again[i].Key), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	committing, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		failed <- s.Publish(t.Context(), Objects{Staged: again}, func(catalog.Claim) error {
			close(committing)
			time.Sleep(3 * claimEvery) // the other publication waits meanwhile
			return syscall.ENOSPC
		})
	}()
	<-committing
	err := s.Publish(t.Context(), Objects{Staged: files}, func(claim catalog.Claim) error {
		return s.catalog.Publish(t.Context(), publication(claim, id))
	})
	if first := <-failed; err != nil || !errors.Is(first, syscall.ENOSPC) {
		t.Errorf("errors %v and %v, want none for the second publication and ENOSPC for the first", err, first)
	}
	if n := s.published(id); n != 2 {
		t.Errorf("%d objects exist, want both", n)
	}
}

// A publisher that has lost its claim neither publishes nor deletes.
func TestLostClaim(t *testing.T) {
	s := open(t, t.TempDir())
	s.Lease = time.Second // for the other publisher's claim
	files, id := staged(t, s)
	err := s.Publish(t.Context(), Objects{Staged: files}, func(claim catalog.Claim) error {
		if err := s.catalog.Claims.Extend(t.Context(), claim, -time.Second); err != nil {
			t.Error(err)
		}
		other := catalog.Claim{Owner: "other/1", Keys: claim.Keys}
		if err := s.catalog.Claims.Acquire(t.Context(), other, defaultLease); err != nil {
			t.Error(err)
		}
		return s.catalog.Publish(t.Context(), publication(claim, id))
	})
	if !errors.Is(err, catalog.ErrLost) {
		t.Errorf("published without a claim: %v, want ErrLost", err)
	}
	if n := s.published(id); n != 2 {
		t.Errorf("%d objects exist, want both, which the other publisher has claimed", n)
	}
}

// A publisher is stopped for so long that another one cleans up after it. When it goes on, it
// deletes what it has uploaded late.
func TestLateUpload(t *testing.T) {
	s := open(t, t.TempDir())
	files, id := staged(t, s)
	err := s.Publish(t.Context(), Objects{Staged: files}, func(claim catalog.Claim) error {
		if err := s.catalog.Claims.Release(t.Context(), claim); err != nil { // another publisher has cleaned up
			t.Error(err)
		}
		return s.catalog.Publish(t.Context(), publication(claim, id))
	})
	if !errors.Is(err, catalog.ErrLost) {
		t.Errorf("published without a claim: %v, want ErrLost", err)
	}
	if n := s.published(id); n != 0 {
		t.Errorf("%d objects exist, want none", n)
	}
}

// While a backup is being made, nothing is deleted.
func TestNothingIsDeletedDuringABackup(t *testing.T) {
	s := open(t, t.TempDir())
	files, id := staged(t, s)
	if err := s.Publish(t.Context(), Objects{Staged: files}, func(claim catalog.Claim) error {
		return s.catalog.Publish(t.Context(), publication(claim, id))
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.catalog.Claims.Hold(t.Context(), "backup", time.Hour); err != nil {
		t.Fatal(err)
	}
	other := objects.PackKey(chunk.Sum([]byte("forgotten")))
	path := filepath.Join(s.scratch, "forgotten")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.objects.Publish(t.Context(), []objects.Staged{{Key: other, Path: path}}); err != nil {
		t.Fatal(err)
	}
	forget := func(catalog.Claim) error { return nil }
	for _, held := range []bool{true, false} {
		if err := s.Delete(t.Context(), []string{other}, forget); err != nil {
			t.Fatal(err)
		}
		wantObjects(t, s, map[string]bool{other: held})
		if err := s.catalog.Claims.EndHold(t.Context(), "backup"); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.published(id); n != 2 {
		t.Errorf("%d known objects are left, want 2", n)
	}
}
