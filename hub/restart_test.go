package hub_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/rootdir"
	"lighter/wire"
)

type catalogImage = catalog.Image

// After a kill during ingestion, the next hub ingests the image again, and leaves no unfinished
// objects.
func TestKilledHubGoesOn(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("before:1", image(upperTar))
	h.idle() // the image's job has ended
	h.stop()

	// This hub receives a push, claims the job of the image, and stops. leaveUnpublished adds the
	// files that a kill would leave.
	dying := openHub(t, h.config)
	server := httptest.NewServer(dying.PublicHandler())
	pushing := &testHub{Hub: dying, t: t, url: server.URL, config: h.config}
	before := pushing.holdings()
	pushing.push("a:1", image(lowerTar, upperTar))
	j, err := dying.Catalog().Jobs.Claim(t.Context(), dying.Owner(), []catalog.Slot{{Kind: "image"}}, time.Hour)
	if err != nil || j.Key != "a:1" {
		t.Fatalf("claimed job %+v, %v, want that of a:1", j, err)
	}
	known, fresh := leaveUnpublished(t, dying, before.objects)
	server.Close()
	if err := dying.Close(); err != nil {
		t.Fatal(err)
	}

	again := runHub(t, openHub(t, h.config))
	got := again.ready("a:1")
	again.fetchTree(got.Chain)
	again.ready("before:1")
	now := again.holdings().objects
	if slices.Contains(now, fresh) {
		t.Error("the unpublished pack was not deleted")
	}
	if !slices.Contains(now, known) {
		t.Error("a published record was deleted")
	}
	again.await(again.extents(got.Tree).ID()) // an image is ready before its layout is made
	if left := files(t, rootdir.Scratch(h.config.Root)); len(left) > 0 {
		t.Errorf("files in the scratch directory: %v, want none", left)
	}
	// The hub has the same objects and rows as one that was never killed.
	other := startHub(t)
	other.pushReady("before:1", image(upperTar))
	other.pushReady("a:1", image(lowerTar, upperTar))
	if got, want := again.holdings().inventory, other.holdings().inventory; got != want {
		t.Errorf("after the restart the hub has %+v, want %+v", got, want)
	}
}

// A hub that ended before it noticed a change of its registry updates its catalog at the next
// start.
func TestKilledHubComparesNames(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:2", image(upperTar))
	h.push("a:1", image(lowerTar))
	want := h.ready("a:2").Digest
	h.ready("a:1")
	h.stop()
	dying := openHub(t, h.config)
	moved, err := dying.Registry().Repository("a").Manifest(t.Context(), "2")
	if err == nil {
		_, err = dying.Names().Changing(t.Context(), "a", "1")
	}
	if err == nil {
		err = dying.Registry().Repository("a").PutManifest(t.Context(), "1", moved)
	}
	if err := errors.Join(err, dying.Close()); err != nil {
		t.Fatal(err)
	}
	again := runHub(t, openHub(t, h.config))
	for range 500 {
		if images := again.settled("a:1"); len(images) == 1 && images[0].Digest == want &&
			images[0].State == wire.StateReady {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the name refers to %+v, want the registry's image", again.settled("a:1"))
}

// A hub is killed after it has deleted a tag or manifest from its registry and before it has
// removed it from its catalog. At the next start it removes the image.
func TestKilledHubForgetsDeletedNames(t *testing.T) {
	t.Parallel()
	for what, reference := range map[string]func(wire.Image) string{
		"tag":      func(wire.Image) string { return "1" },
		"manifest": func(i wire.Image) string { return i.Digest },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			which := reference(h.pushReady("a:1", image(lowerTar)))
			h.stop()
			dying := openHub(t, h.config)
			_, err := dying.Names().Changing(t.Context(), "a", which)
			if err == nil {
				err = dying.Registry().Repository("a").Delete(t.Context(), which)
			}
			if err := errors.Join(err, dying.Close()); err != nil {
				t.Fatal(err)
			}
			again := runHub(t, openHub(t, h.config))
			again.idle()
			if images := again.settled("a:1"); len(images) != 0 {
				t.Errorf("images %+v, want none", images)
			}
		})
	}
}

// A removal that was interrupted by the end of the hub is completed.
func TestKilledHubCompletesARemoval(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(lowerTar))
	h.stop()
	dying := openHub(t, h.config)
	ctx, cancel := context.WithCancel(t.Context())
	removed := make(chan error, 1)
	go func() { removed <- dying.Names().Remove(ctx, "a:1") }()
	var err error
	slots := []catalog.Slot{{Kind: "name"}}
	for range 3000 {
		if _, err = dying.Catalog().Jobs.Claim(ctx, dying.Owner(), slots, time.Hour); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-removed
	// The test does what the removal does before the kill: it deletes the tag and the catalog's
	// rows.
	err = errors.Join(err, dying.Registry().Repository("a").Delete(t.Context(), "1"),
		dying.Catalog().Remove(t.Context(), "image", "a:1", ""), dying.Close())
	if err != nil {
		t.Fatal(err)
	}
	again := runHub(t, openHub(t, h.config))
	again.idle()
	again.expect("/v2/a/manifests/1", 404)
	if images := again.settled("a:1"); len(images) != 0 {
		t.Errorf("images %+v, want none", images)
	}
}

// Two pushes of one tag overlap, as they may at two processes: the first push in the registry is
// the last one in the catalog. The catalog then follows the registry.
func TestOverlappingPushesOfATag(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:first", image(lowerTar))
	h.push("a:second", image(upperTar))
	first, second := h.ready("a:first").Digest, h.ready("a:second").Digest
	repository := h.Registry().Repository("a")
	var settled []func() bool
	for _, digest := range []string{first, second} {
		done, err := h.Names().Changing(t.Context(), "a", "1")
		if err != nil {
			t.Fatal(err)
		}
		settled = append(settled, done)
		m, err := repository.Manifest(t.Context(), digest)
		if err == nil {
			err = repository.PutManifest(t.Context(), "1", m)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	name := func(digest string) {
		t.Helper()
		if _, err := h.Catalog().Name(t.Context(), "a:1", []catalogImage{{Root: digest, Digest: digest,
			State: wire.StateStored}}, catalog.Job{Kind: "image", Key: "a:1", Root: digest}); err != nil {
			t.Fatal(err)
		}
	}
	name(second)
	settled[1]()
	name(first)
	settled[0]()
	h.idle()
	if images := h.settled("a:1"); len(images) != 1 || images[0].Digest != second {
		t.Errorf("the name refers to %+v, want %s, as in the registry", images, second)
	}
	// A push that overlaps with no other change needs no job.
	done, err := h.Names().Changing(t.Context(), "a", "1")
	if err != nil {
		t.Fatal(err)
	}
	done()
	if j, err := h.Catalog().Jobs.Open(t.Context(), "name", "a:1"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("job %+v, %v, want none", j, err)
	}
}

// leaveUnpublished leaves the files and claims of a hub that was killed between storing objects and
// the catalog's commit. It returns the keys of a published record and of an unpublished pack.
func leaveUnpublished(t *testing.T, dying *hub.Hub, objectsBefore []string) (known, fresh string) {
	t.Helper()
	root := dying.Config().Root
	dir := filepath.Join(rootdir.Scratch(root), "image-1")
	known = firstWith(objectsBefore, "layers/")
	fresh = objects.PackKey([32]byte{1, 2, 3})
	claim := catalog.Claim{Owner: dying.Owner() + "/1", Keys: []string{known, fresh}}
	if err := dying.Catalog().Claims.Acquire(t.Context(), claim, time.Hour); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(dir, "pack-7"):                     "half a pack",
		filepath.Join(objectsDir(dying.Config()), fresh): "a pack that nobody knows",
		filepath.Join(rootdir.Scratch(root), "anything"): "",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return known, fresh
}

func firstWith(list []string, prefix string) string {
	for _, s := range list {
		if strings.HasPrefix(s, prefix) {
			return s
		}
	}
	return ""
}

// The ingestion of an added image continues after its client has closed the connection.
func TestWorkGoesOnWithoutTheClient(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar, upperTar))
	held, release := r.holdBlobs(t)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := h.client.Add(ctx, wire.Add{Source: r.source(), Name: "a:1"}, silent)
		gone <- err
	}()
	awaitHeld(t, held)
	h.known("a:1")
	cancel()
	if err := <-gone; err == nil {
		t.Fatal("the request did not wait for the image")
	}
	release()
	if images := h.settled("a:1"); len(images) != 1 || images[0].State != wire.StateReady {
		t.Errorf("images %+v, want one that is ready", images)
	}
}
