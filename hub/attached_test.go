package hub_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/attached"
	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/hub"
	"lighter/hub/attach"
	"lighter/hub/catalog"
	"lighter/hub/registries"
	nodes "lighter/registries"
	"lighter/store"
	"lighter/store/attachment"
	"lighter/store/repository"
	"lighter/test/testkit/eventually"
	"lighter/wire"
)

// attachesTo makes a hub attach indexes to the images of some repositories of a registry.
func attachesTo(u *upstream) func(*hub.Config) {
	return func(c *hub.Config) {
		c.Registries = append(c.Registries, registries.Registry{Reached: reached(u.host()),
			Attach: []string{"physics/**"}})
	}
}

// attachingHub runs a hub that attaches indexes as soon as there is something to attach.
func attachingHub(t *testing.T, u *upstream) *testHub {
	t.Helper()
	c := hubConfig(t)
	attachesTo(u)(&c)
	return runAttaching(t, c)
}

func runAttaching(t *testing.T, c hub.Config) *testHub {
	t.Helper()
	h := openHub(t, c)
	h.Starts().Timing.MergeDelay, h.Starts().Timing.Recompress = 0, 0
	h.Attacher().LookEvery, h.Attacher().Pause = 20*time.Millisecond, 100*time.Millisecond
	return runHub(t, h)
}

// client returns a client that pushes to the registry itself.
func (u *upstream) client(h *testHub) *testHub {
	c := *h
	c.url, c.host = u.server.URL, ""
	return &c
}

// attachJob waits until the last job of an image of the registry is as wanted, and returns it.
func (h *testHub) attachJob(u *upstream, repository string, id digest.Digest, is func(catalog.Job) bool) catalog.Job {
	h.t.Helper()
	var last catalog.Job
	eventually.Holds(h.t, "the image's job", func() bool {
		all, err := h.Catalog().Jobs.LastOf(h.t.Context(), attach.JobKind)
		if err != nil {
			h.t.Fatal(err)
		}
		last = all[u.host()+"/"+repository+"@"+id.String()]
		return last.Kind != "" && is(last)
	})
	return last
}

func isDone(j catalog.Job) bool   { return j.State == wire.JobDone }
func isFailed(j catalog.Job) bool { return j.State == wire.JobFailed }
func isToldWhy(j catalog.Job) bool {
	return j.State == wire.JobQueued && j.Error != ""
}

// found returns the indexes that a node finds, whose configuration has the hub's keys.
func (h *testHub) found(u *upstream, name string, got wire.Image) (*repository.Repository, []attachment.Found) {
	h.t.Helper()
	all, err := nodes.New([]nodes.Registry{reached(u.host())}, logOf(h.t), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = all.Close() })
	in, err := repository.Open(all, u.host()+"/"+name, nodes.Access{})
	if err != nil {
		h.t.Fatal(err)
	}
	found, refused, err := attachment.Find(h.t.Context(), in, digest.Digest(got.Digest), got.Chain, nil,
		attachment.Trust{Keys: h.PublicKeys()})
	// The list may name an index that the hub deletes at this moment, or one of others.
	if err != nil || refused != nil && !errors.Is(refused, chunk.ErrNotFound) &&
		!errors.Is(refused, attached.ErrNotSigned) {
		h.t.Fatalf("a node that looks for an index: %v, %v", refused, err)
	}
	return in, found
}

// bytesOf reads a part of a blob, or all of it if length is 0.
func bytesOf(t *testing.T, in *repository.Repository, d v1.Descriptor, offset, length int64) (b []byte) {
	t.Helper()
	take := func(a store.Answer) (err error) {
		b, err = io.ReadAll(a.Body)
		return err
	}
	var err error
	if length == 0 {
		err = in.Whole(t.Context(), d, take)
	} else {
		err = in.Range(t.Context(), d, offset, length, take)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func plain(t *testing.T, b []byte) []byte {
	t.Helper()
	r, err := compress.ReadCloser(io.NopCloser(bytes.NewReader(b)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err = io.ReadAll(r); err != nil {
		t.Fatal(err)
	}
	return b
}

// wantReadable reads all chunks of an image by its attached index, from the registry alone. It
// returns how many of them are in startup packs.
func wantReadable(t *testing.T, in *repository.Repository, c *attached.Contents, layers []v1.Descriptor) (laid int) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "index"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := attached.ReadIndex(file, bytes.NewReader(bytesOf(t, in, c.Index, 0, 0)), c.Tree); err != nil {
		t.Fatal(err)
	}
	m, err := index.OpenMap(file, c.Tree, index.NewPages(64))
	if err != nil {
		t.Fatal(err)
	}
	b := plain(t, bytesOf(t, in, c.Locations, 0, 0))
	locations, err := index.OpenLocations(bytes.NewReader(b), int64(len(b)), c.Tree, m.Extents)
	if err != nil {
		t.Fatal(err)
	}
	lookup := func(id chunk.ID, u chunk.Unit) error {
		for _, p := range c.Packs {
			if p.Blob.Digest.Encoded() == u.Pack.String() {
				offset, length, err := p.Unit(u.N)
				if err != nil {
					return err
				}
				unit, err := pack.DecodeUnit(bytesOf(t, in, p.Blob, offset, length))
				if err == nil {
					_, err = unit.Lookup(id)
				}
				laid++
				return err
			}
		}
		n := slices.IndexFunc(layers, func(d v1.Descriptor) bool { return d.Digest.Encoded() == u.Pack.String() })
		if n < 0 {
			return fmt.Errorf("unit %s is nowhere", u)
		}
		made, err := attached.ReadTable(bytes.NewReader(bytesOf(t, in, c.Tables[n], 0, 0)), m)
		if err != nil {
			return err
		}
		table, err := made.Open()
		if err != nil {
			return err
		}
		unit, err := table.Unit(u.N)
		if err != nil {
			return err
		}
		batch, err := unit.Decode(bytesOf(t, in, layers[n], unit.Offset, unit.Stored))
		if err == nil {
			_, err = batch.Lookup(id)
		}
		return err
	}
	for i := range m.Extents {
		x, err := m.Extent(i)
		var u chunk.Unit
		if err == nil {
			u, err = locations.Unit(i)
		}
		if err == nil {
			err = lookup(x.ID, u)
		}
		if err != nil {
			t.Errorf("chunk %s: %v", x.ID.Short(), err)
		}
	}
	return laid
}

// An image of another registry gets an index there that a node accepts, and reads by it. After its
// layout has changed it gets another one, for which no layer is read again. Images of other
// repositories get none.
func TestIndexIsAttached(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	h := attachingHub(t, u)
	i := image(lowerTar, startsTar(10))
	id := u.client(h).push("physics/a:1", i)
	u.client(h).push("other/a:1", i)
	got := h.added(wire.Add{Source: "docker://" + u.host() + "/physics/a:1"})
	h.added(wire.Add{Source: "docker://" + u.host() + "/other/a:1"})
	h.attachJob(u, "physics/a", id, isDone)
	h.await(treeOf(t, got.Tree))
	manifest, _, _ := i.build()
	in, found := h.found(u, "physics/a", got)
	if len(found) != 1 || found[0].Contents.Tree.String() != got.Tree || found[0].Contents.Version != 1 {
		t.Fatalf("a node finds %+v, want the index of tree %s", found, got.Tree)
	}
	wantReadable(t, in, found[0].Contents, manifest.Layers)
	reads := len(u.requests("GET /v2/physics/a/blobs/" + manifest.Layers[1].Digest.String()))

	m := h.extents(got.Tree)
	h.traced(m, 7, 2, 4)
	eventually.Holds(t, "another index", func() bool {
		in, found = h.found(u, "physics/a", got)
		return len(found) == 1 && found[0].Contents.Version > 1 && len(found[0].Contents.Packs) == 1
	})
	last := h.attachJob(u, "physics/a", id, isDone)
	layers := u.requests("GET /v2/physics/a/blobs/" + manifest.Layers[1].Digest.String())
	if len(layers) != reads {
		t.Errorf("the registry was asked for a layer: %q, want %d requests", layers, reads)
	}
	if laid := wantReadable(t, in, found[0].Contents, manifest.Layers); laid == 0 {
		t.Error("the index has no startup packs")
	}
	if more := u.requests("/referrers/"); slices.ContainsFunc(more, func(s string) bool {
		return strings.Contains(s, "/other/")
	}) {
		t.Errorf("the hub looks at other repositories: %q", more)
	}

	// The job finds what is attached, also if nobody knows of the last one.
	h.attachJob(u, "physics/a", id, isDone)
	puts := len(u.requests("PUT "))
	if _, err := h.Catalog().Jobs.Add(t.Context(), catalog.Job{Kind: attach.JobKind, Key: last.Key}, 0); err != nil {
		t.Fatal(err)
	}
	h.attachJob(u, "physics/a", id, func(j catalog.Job) bool { return isDone(j) && j.N > last.N })
	if more := u.requests("PUT "); len(more) != puts {
		t.Errorf("an index that has not changed is pushed again: %q", more[puts:])
	}
}

// A hub that gets another key signs the indexes again, and reads no layer for it.
func TestIndexIsSignedAgain(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	h := attachingHub(t, u)
	i := image(upperTar)
	id := u.client(h).push("physics/a:1", i)
	got := h.added(wire.Add{Source: "docker://" + u.host() + "/physics/a:1"})
	h.attachJob(u, "physics/a", id, isDone)
	h.stop()
	if _, err := hub.AddKey(h.config.Root); err != nil {
		t.Fatal(err)
	}
	manifest, _, _ := i.build()
	layer := "GET /v2/physics/a/blobs/" + manifest.Layers[0].Digest.String()
	reads := len(u.requests(layer))
	again := runAttaching(t, h.config)
	eventually.Holds(t, "an index with both signatures", func() bool {
		_, found := again.found(u, "physics/a", got)
		return len(found) == 1 && len(found[0].Signers) == 2
	})
	last := again.attachJob(u, "physics/a", id, isDone)
	time.Sleep(300 * time.Millisecond) // some looks
	if now := again.attachJob(u, "physics/a", id, isDone); now.N != last.N {
		t.Errorf("job %d follows job %d, which has signed it", now.N, last.N)
	}
	if more := len(u.requests(layer)); more != reads {
		t.Errorf("the layer was read %d times more", more-reads)
	}
}
