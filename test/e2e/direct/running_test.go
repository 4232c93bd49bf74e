//go:build e2e

package direct

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/stargz"
	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/test/testkit/tarball"
)

// onlyReads is the line that keeps a node from fetching what nobody has read.
const onlyReads = "prefetch = false"

// pushUnread makes an image of base and a layer with the file /opt/unread. It pushes the image, in
// eStargz or as it is, and returns the layer's digest.
func pushUnread(t *testing.T, s *site.Site, name, content string, lazy bool) digest.Digest {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	image := images.Base(t, []tarball.Item{tarball.File("opt/unread", content)})
	if err := images.Write(dir, "latest", image); err != nil {
		t.Fatal(err)
	}
	if lazy {
		plain := dir
		dir = filepath.Join(t.TempDir(), "layout")
		if err := layout.Lazy(t.Context(), plain, dir, stargz.Options{Format: stargz.EStargz}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Push(t.Context(), dir, name); err != nil {
		t.Fatal(err)
	}
	manifest, err := layout.Manifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	return manifest.Layers[len(manifest.Layers)-1].Digest
}

// startSleep pulls an image lazily, and starts a container of it that does nothing.
func startSleep(t *testing.T, s *site.Site, ref string) *site.Container {
	t.Helper()
	pull(t, s, ref)
	wantLazy(t, s, true)
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, ref, "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// discard removes a container and its image.
func discard(t *testing.T, s *site.Site, c *site.Container, ref string) {
	t.Helper()
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
}

// sumUnread is what sha256sum prints of /opt/unread.
func sumUnread(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:]) + "  /opt/unread\n"
}

// The node is killed while a container runs. With the next node, the container reads a file of
// which nothing is cached: its bytes come from the registry.
func TestKilledUnderAContainer(t *testing.T) {
	key, public := makeKey(t)
	s := startWith(t, site.Options{Hubs: []string{}}, trusting("lazy/*"), quiet(), onlyReads,
		"attached_keys = [\""+public+"\"]")
	const size = 4 << 20
	noise := tarball.Noise(2 * size)
	for i, name := range []string{"lazy/estargz", "plain/attached"} {
		content, ref := noise[i*size:][:size], site.Reference(name) // no image has chunks of the other one
		pushUnread(t, s, name, content, i == 0)
		if i == 1 {
			lighter(t, "attach", "--plain-http", "--key", key, ref)
		}
		c := startSleep(t, s, ref)
		restart(t, s)
		var out string
		var err error
		moved := images.Received(t, s, func() { out, err = c.Exec(t.Context(), "sha256sum", "/opt/unread") })
		if err != nil || out != sumUnread(content) {
			t.Errorf("%s: the container reads %q, %v, want %q", name, out, err, sumUnread(content))
		}
		if moved < size {
			t.Errorf("%s: the read received %d bytes, want at least %d: nothing of the file was cached", name, moved,
				size)
		}
		discard(t, s, c, ref)
	}
}

// The registry loses a layer while a container runs. The container's reads of bytes that are not
// cached fail within a minute, and only these. The node's log names the layer. When it is there
// again, the reads succeed within seconds.
func TestLayerIsLostAndFound(t *testing.T) {
	s := startWith(t, site.Options{Hubs: []string{}}, trusting("lazy/*"), quiet(), onlyReads)
	content := tarball.Noise(4 << 20)
	layer := pushUnread(t, s, "lazy/unread", content, true)
	file := s.BlobFile(layer)
	ref := site.Reference("lazy/unread")
	c := startSleep(t, s, ref)
	read := func(path string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return c.Exec(ctx, "sha256sum", path)
	}
	program, err := read("/usr/bin/sha256sum") // is cached from now on
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file, file+".lost"); err != nil {
		t.Fatal(err)
	}
	if out, err := read("/opt/unread"); err == nil || !strings.Contains(err.Error(), "Input/output error") {
		t.Errorf("without the layer: %q, %v, want an input/output error", out, err)
	}
	if out, err := read("/usr/bin/sha256sum"); err != nil || out != program {
		t.Errorf("without the layer, a cached file: %q, %v, want %q", out, err, program)
	}
	if err := os.Rename(file+".lost", file); err != nil {
		t.Fatal(err)
	}
	// A chunk that nobody has is not asked for again at once.
	var out string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		if out, err = read("/opt/unread"); err == nil {
			break
		}
	}
	if err != nil || out != sumUnread(content) {
		t.Errorf("with the layer again: %q, %v, want %q", out, err, sumUnread(content))
	}
	log, err := os.ReadFile(s.Machine.NodeLog())
	if _, said, _ := strings.Cut(string(log), `msg="read failed"`); err != nil || !strings.Contains(said,
		"blob "+layer.String()) {
		t.Errorf("the log says of the reads that failed: %s, %v, want the layer %s", said, err, layer)
	}
	discard(t, s, c, ref)
}
