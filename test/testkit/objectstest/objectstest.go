// Package objectstest is the conformance suite for object stores. Every kind of bucket must pass
// it.
package objectstest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/pack"
	"lighter/hub/objects"
)

// Run runs the suite. open returns an empty store, which the suite closes. scratch returns a
// directory in which the suite stages files: Publish moves or deletes them.
func Run(t *testing.T, open func(t *testing.T) *objects.Store, scratch func(t *testing.T) string) {
	for name, test := range map[string]func(*suite){
		"PublishAndRead": publishAndRead, "Replace": replace, "Delete": deleteObjects, "List": list,
		"DeleteMany": deleteMany, "NotFound": notFound, "PublishFails": publishFails, "Units": units,
		"DamagedPack": damagedPack, "Concurrent": concurrent,
	} {
		t.Run(name, func(t *testing.T) {
			s := &suite{T: t, Store: open(t), scratch: scratch(t)}
			t.Cleanup(func() {
				if err := s.Store.Close(); err != nil {
					t.Errorf("close the store: %v", err)
				}
			})
			test(s)
		})
	}
}

type suite struct {
	*testing.T
	*objects.Store
	scratch string
}

// stage writes b to a file that can be published under key.
func (s *suite) stage(key string, b []byte) objects.Staged {
	s.Helper()
	file, err := os.CreateTemp(s.scratch, "staged")
	if err != nil {
		s.Fatal(err)
	}
	_, err = file.Write(b)
	if err := errors.Join(err, file.Close()); err != nil {
		s.Fatal(err)
	}
	return objects.Staged{Key: key, Path: file.Name()}
}

func (s *suite) publish(key string, b []byte) {
	s.Helper()
	f := s.stage(key, b)
	if err := s.Publish(s.Context(), []objects.Staged{f}); err != nil {
		s.Fatalf("publish %s: %v", key, err)
	}
	if _, err := os.Stat(f.Path); !errors.Is(err, os.ErrNotExist) {
		s.Errorf("the staged file of %s still exists (%v), want it removed", key, err)
	}
}

// want checks the content of an opened object.
func (s *suite) want(o *objects.Object, err error, want string) {
	s.Helper()
	if err != nil {
		s.Errorf("open: %v", err)
		return
	}
	defer o.Close()
	b, err := io.ReadAll(o)
	if err != nil || string(b) != want || o.Size != int64(len(want)) {
		s.Errorf("got %q of size %d (%v), want %q", b, o.Size, err, want)
	}
}

func publishAndRead(s *suite) {
	key := objects.IndexKey(chunk.Sum([]byte("tree")))
	s.publish(key, []byte("an index"))
	o, err := s.Open(s.Context(), key)
	s.want(o, err, "an index")

	if o, err = s.Open(s.Context(), key); err != nil {
		s.Fatal(err)
	}
	var b bytes.Buffer
	if n, err := o.WriteTo(&b); err != nil || n != 8 || b.String() != "an index" {
		s.Errorf("WriteTo wrote %d bytes, %q (%v), want %q", n, b.String(), err, "an index")
	}
	if err := o.Close(); err != nil {
		s.Error(err)
	}
}

func replace(s *suite) {
	key := objects.LocationsKey(chunk.Sum(nil))
	for _, text := range []string{"locations", "the same, compressed again"} {
		s.publish(key, []byte(text))
		o, err := s.Open(s.Context(), key)
		s.want(o, err, text)
	}
}

func deleteObjects(s *suite) {
	keys := []string{objects.LayerKey("sha256:aa"), objects.LayerKey("sha256:bb"), objects.LayerKey("sha256:cc")}
	s.publish(keys[0], []byte("a"))
	s.publish(keys[2], []byte("c"))
	if err := s.Delete(s.Context(), keys[:2]); err != nil {
		s.Errorf("delete an object that exists and one that does not: %v", err)
	}
	if _, err := s.Open(s.Context(), keys[0]); !errors.Is(err, objects.ErrNotFound) {
		s.Errorf("open a deleted object: %v, want ErrNotFound", err)
	}
	o, err := s.Open(s.Context(), keys[2])
	s.want(o, err, "c")
}

// list checks that List returns the hub's objects in order of their keys, from the first one on and
// after each of them, and no objects of other programs.
func list(s *suite) {
	want := []string{objects.IndexKey(chunk.Sum([]byte("b"))), objects.IndexKey(chunk.Sum([]byte("a"))),
		objects.LayerKey("sha256:aa"), objects.LocationsKey(chunk.Sum([]byte("x"))), objects.PackKey(chunk.Sum(nil))}
	slices.Sort(want)
	begun := time.Now().Add(-time.Minute) // the clock of the store may differ
	for i, key := range want {
		s.publish(key, make([]byte, i+1))
	}
	s.publish("other/things", []byte("of somebody else"))
	for from := range len(want) + 1 {
		after := ""
		if from > 0 {
			after = want[from-1]
		}
		var got []string
		for o, err := range s.List(s.Context(), after) {
			if err != nil {
				s.Fatal(err)
			}
			if size := slices.Index(want, o.Key) + 1; o.Size != int64(size) || o.Time.Before(begun) {
				s.Errorf("%s has %d bytes and the time %v, want %d bytes and a time after %v", o.Key, o.Size, o.Time,
					size, begun)
			}
			got = append(got, o.Key)
		}
		if !slices.Equal(got, want[from:]) {
			s.Errorf("the list after %q is %v, want %v", after, got, want[from:])
		}
	}
	for range s.List(s.Context(), "") {
		return // a caller may stop before the end of the list
	}
}

// deleteMany lists and deletes more objects than one request to a bucket can list or delete.
func deleteMany(s *suite) {
	const n = 1005
	var files []objects.Staged
	var keys []string
	for i := range n {
		keys = append(keys, objects.PackKey(chunk.Sum([]byte{byte(i), byte(i >> 8)})))
		files = append(files, s.stage(keys[i], []byte("x")))
	}
	kept := objects.LayerKey("sha256:aa")
	s.publish(kept, []byte("kept"))
	if err := s.Publish(s.Context(), files); err != nil {
		s.Fatal(err)
	}
	count := func() (n int) {
		for _, err := range s.List(s.Context(), "") {
			if err != nil {
				s.Fatal(err)
			}
			n++
		}
		return n
	}
	if got := count(); got != n+1 {
		s.Errorf("%d objects are listed, want %d", got, n+1)
	}
	if err := s.Delete(s.Context(), append(keys, objects.PackKey(chunk.Sum([]byte("missing"))))); err != nil {
		s.Error(err)
	}
	if got := count(); got != 1 {
		s.Errorf("%d objects are left, want 1", got)
	}
	o, err := s.Open(s.Context(), kept)
	s.want(o, err, "kept")
}

func notFound(s *suite) {
	id := chunk.Sum([]byte("unknown"))
	_, open := s.Open(s.Context(), objects.PackKey(id))
	_, unit := s.OpenUnit(s.Context(), chunk.Unit{Pack: id})
	_, count := s.CountUnits(s.Context(), id)
	for what, err := range map[string]error{"Open": open, "OpenUnit": unit, "CountUnits": count} {
		if !errors.Is(err, objects.ErrNotFound) {
			s.Errorf("%s of an unknown object: %v, want ErrNotFound", what, err)
		}
	}
}

func publishFails(s *suite) {
	missing := objects.Staged{Key: "packs/missing", Path: filepath.Join(s.scratch, "missing")}
	if err := s.Publish(s.Context(), []objects.Staged{missing}); err == nil {
		s.Error("publish a file that does not exist: got no error")
	}
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	if err := s.Publish(ended, []objects.Staged{s.stage("packs/late", []byte("late"))}); !errors.Is(err,
		context.Canceled) {
		s.Errorf("publish after the context has ended: %v, want Canceled", err)
	}
}

// newPack returns the ID and the bytes of a pack with these units.
func (s *suite) newPack(units ...string) (chunk.ID, []byte) {
	s.Helper()
	var b bytes.Buffer
	w := pack.NewWriter(&b)
	for _, u := range units {
		if _, err := w.Add([]byte(u)); err != nil {
			s.Fatal(err)
		}
	}
	id, _, err := w.Close()
	if err != nil {
		s.Fatal(err)
	}
	return id, b.Bytes()
}

func units(s *suite) {
	want := []string{"first unit", "second", "3"}
	id, b := s.newPack(want...)
	s.publish(objects.PackKey(id), b)
	for range 2 { // the first CountUnits reads the pack's table, later calls find it in memory
		if n, err := s.CountUnits(s.Context(), id); n != len(want) || err != nil {
			s.Errorf("CountUnits = %d, %v, want %d", n, err, len(want))
		}
		for n, text := range want {
			o, err := s.OpenUnit(s.Context(), chunk.Unit{Pack: id, N: uint32(n)})
			s.want(o, err, text)
		}
		if _, err := s.OpenUnit(s.Context(), chunk.Unit{Pack: id, N: 3}); !errors.Is(err, chunk.ErrNotFound) {
			s.Errorf("open a unit that the pack does not have: %v, want chunk.ErrNotFound", err)
		}
	}
}

func damagedPack(s *suite) {
	_, b := s.newPack("a unit")
	id := chunk.Sum([]byte("damaged"))
	s.publish(objects.PackKey(id), b[:len(b)-3])
	if _, err := s.OpenUnit(s.Context(), chunk.Unit{Pack: id}); err == nil || errors.Is(err, objects.ErrNotFound) {
		s.Errorf("open a unit of a truncated pack: %v, want an error other than ErrNotFound", err)
	}
}

// concurrent publishes the same object several times while it is read.
func concurrent(s *suite) {
	id, b := s.newPack("a unit", "another unit")
	s.publish(objects.PackKey(id), b)
	var files []objects.Staged
	for range 8 {
		files = append(files, s.stage(objects.PackKey(id), b))
	}
	var group sync.WaitGroup
	for _, f := range files {
		group.Go(func() {
			if err := s.Publish(s.Context(), []objects.Staged{f}); err != nil {
				s.Errorf("publish concurrently: %v", err)
			}
		})
		group.Go(func() {
			o, err := s.OpenUnit(s.Context(), chunk.Unit{Pack: id, N: 1})
			s.want(o, err, "another unit")
		})
	}
	group.Wait()
}
