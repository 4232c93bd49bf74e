package hub

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/hub/catalog"
	"lighter/hub/objects"
	wire "lighter/store/hub"
)

type catalogImage = catalog.Image

// A hub that was killed in the middle of its work goes on where it was, and
// nothing of what it had begun is left.
func TestKilledHubGoesOn(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("before:1", image(upperTar))
	h.ready("before:1")
	h.stop()

	// A hub that takes pushes, but dies in the middle of taking the image in.
	dying := openHub(t, h.config)
	server := httptest.NewServer(dying.handler())
	pushing := &testHub{Hub: dying, t: t, url: server.URL, config: h.config}
	before := pushing.holdings()
	pushing.push("a:1", image(lowerTar, upperTar))
	row, err := dying.catalog.Next(t.Context())
	if err != nil || row.Name != "a:1" {
		t.Fatalf("%+v, %v", row, err)
	}
	known, fresh := leaveHalf(t, h.config.Root, before.objects)
	server.Close()
	if err := dying.Close(); err != nil {
		t.Fatal(err)
	}

	again := runHub(t, openHub(t, h.config))
	got := again.ready("a:1")
	again.fetchTree(got.Chain)
	again.ready("before:1")
	now := again.holdings().objects
	if firstWith(now, fresh) != "" {
		t.Error("the unknown pack is still there")
	}
	if firstWith(now, known) == "" {
		t.Error("a record that was known is gone")
	}
	again.unchanged("after the restart", again.holdings())
}

// leaveHalf leaves what a hub does that dies while it publishes: it has told
// nobody. It returns the keys of a record that was known before, and of a pack.
func leaveHalf(t *testing.T, root string, objectsBefore []string) (known, fresh string) {
	t.Helper()
	dir := filepath.Join(scratchDir(root), "image-1")
	known = firstWith(objectsBefore, "layers/")
	fresh = objects.PackKey([32]byte{1, 2, 3})
	for path, text := range map[string]string{
		filepath.Join(dir, "journal"):               known + "\n" + fresh,
		filepath.Join(dir, "pack-7"):                "half a pack",
		filepath.Join(objectsDir(root), fresh):      "a pack that nobody knows",
		filepath.Join(scratchDir(root), "anything"): "",
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

// Whoever waits may go; the work goes on.
func TestWorkGoesOnWithoutTheClient(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	source := startHub(t)
	source.push("a:1", image(lowerTar, upperTar))
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, err := h.client.Add(ctx, wire.Add{Source: "docker://" + strings.TrimPrefix(source.url, "http://") + "/a:1", Name: "a:1"}, func(wire.Progress) {})
		if err == nil {
			return // it was faster
		}
	}()
	for {
		if images, err := h.client.Images(t.Context(), "a:1"); err != nil {
			t.Fatal(err)
		} else if len(images) > 0 {
			break
		}
	}
	cancel()
	<-gone
	if images := h.settled("a:1"); len(images) != 1 || images[0].State != wire.StateReady {
		t.Errorf("%+v", images)
	}
}
