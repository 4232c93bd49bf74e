package hub_test

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/mirror"
	"lighter/store/origin"
	"lighter/test/testkit/tarball"
	"lighter/wire"
	"lighter/wire/client"
)

// mirror copies images of the hub into dir: those with these names, or all. It returns the result
// and all reports of progress.
func (h *testHub) mirror(dir string, names ...string) (mirror.Result, []wire.Progress) {
	h.t.Helper()
	var said []wire.Progress
	done, err := mirrorOf(h.t, h.client, dir, nil, func(p wire.Progress) {
		said = append(said,
			p)
	}).Copy(h.t.Context(), names)
	if err != nil {
		h.t.Fatal(err)
	}
	return done, said
}

// mirrorOf returns a mirror in dir of the hub that a client uses.
func mirrorOf(t *testing.T, hub *client.Client, dir string, keys []ed25519.PublicKey,
	report func(wire.Progress)) *mirror.Mirror {
	t.Helper()
	m, err := mirror.New(client.Options{URL: hub.URL()}, dir, keys, report)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// originsOf returns a node's client of the hub that a client uses.
func originsOf(t *testing.T, hub *client.Client) *origin.Failover {
	t.Helper()
	f, err := origin.New(slog.New(slog.DiscardHandler), client.Options{URL: hub.URL(), Domain: hub.Domain()})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// serveFiles serves a directory like any web server.
func serveFiles(t *testing.T, dir string) *client.Client {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	client, err := client.New(client.Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// A mirror has every chain of its images, and names only images that it has. Its answers about
// chains never say that they are complete. It does not fetch existing files again.
func TestMirror(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	third := tarball.Of(tarball.File("third", noise(4, 20_000)))
	for name, tars := range map[string][][]byte{"a:1": {lowerTar, upperTar}, "b:1": {lowerTar, third},
		"c:1": {lowerTar, upperTar, third}} {
		h.pushReady(name, image(tars...))
	}
	dir := filepath.Join(t.TempDir(), "mirror")
	done, said := h.mirror(dir, "a:1")
	if done.Trees != 2 || done.Fetched == 0 || done.Bytes == 0 || len(said) == 0 ||
		said[len(said)-1].Bytes != said[len(said)-1].Total {
		t.Errorf("mirror: %+v with progress %+v, want two trees, and all bytes at the end", done, said)
	}
	mirror := serveFiles(t, dir)
	a, b, c := h.ready("a:1"), h.ready("b:1"), h.ready("c:1")
	lower := digest.FromBytes(lowerTar).String()
	for _, chain := range []string{lower, a.Chain} {
		want, chunks := h.fetchTree(chain)
		if got, copied := fetchTree(t, mirror, chain, false); got != want ||
			!maps.EqualFunc(chunks, copied, slices.Equal) {
			t.Errorf("chain %s: %+v in the mirror, want %+v as on the hub", chain, got, want)
		}
	}
	above := func(want ...string) {
		t.Helper()
		answer, err := mirror.Chain(t.Context(), lower)
		if err != nil {
			t.Fatal(err)
		}
		var tops []string
		for _, l := range answer.Above {
			if l.Statement != nil {
				tops = append(tops, l.Chain)
			}
		}
		slices.Sort(tops)
		slices.Sort(want)
		if answer.Complete || answer.Chain != lower || answer.DiffID != lower || answer.Statement != nil ||
			!slices.Equal(tops, want) {
			t.Errorf("the mirror answers %+v, want an incomplete answer with the tops %q", answer, want)
		}
	}
	above(a.Chain)
	if _, err := mirror.Chain(t.Context(), c.Chain); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("an image that was not mirrored: %v, want not found", err)
	}
	if again, _ := h.mirror(dir, "a:1"); again.Fetched != 0 || again.Kept != done.Fetched+done.Kept {
		t.Errorf("second run: %+v, first run %+v, want all files kept", again, done)
	}
	if rest, _ := h.mirror(dir, "b:1"); rest.Kept == 0 || rest.Fetched == 0 {
		t.Errorf("run with another image: %+v, want some files kept and some fetched", rest)
	}
	above(a.Chain, b.Chain)
	// After a crash that has lost the lowest chain, the mirror still knows all images.
	if err := os.Remove(filepath.Join(dir, wire.Prefix, wire.DefaultDomain, "chains", lower)); err != nil {
		t.Fatal(err)
	}
	h.mirror(dir, "b:1")
	above(a.Chain, b.Chain)
	if all, _ := h.mirror(dir); len(all.Images) != 3 {
		t.Errorf("a run for all images: %+v, want three", all)
	}
	above(a.Chain, b.Chain, c.Chain)
	if _, err := os.Stat(filepath.Join(dir, ".new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of unfinished files: %v, want none", err)
	}
}

// Neither damaged answers nor answers that refer to damaged ones are mirrored. The next run
// completes the mirror.
func TestMirrorOfABadHub(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	a := h.pushReady("a:1", image(lowerTar, upperTar))
	dir := t.TempDir()
	copyFrom := func(spoil string) error {
		bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			status, body, _ := h.do(req.Method, req.URL.RequestURI(), nil)
			if spoil != "" && strings.Contains(req.URL.Path, spoil) {
				body[len(body)/2] ^= 1
			}
			w.WriteHeader(status)
			_, _ = w.Write(body)
		}))
		defer bad.Close()
		client, err := client.New(client.Options{URL: bad.URL})
		if err != nil {
			t.Fatal(err)
		}
		_, err = mirrorOf(t, client, dir, nil, silent).Copy(t.Context(), []string{"a:1"})
		return err
	}
	domain := filepath.Join(dir, wire.Prefix, wire.DefaultDomain)
	for spoil, absent := range map[string]string{"/packs/": "locations", "/locations/": "indexes",
		"/indexes/": "trees", "/trees/": "chains", "/key": "packs"} {
		if err := os.RemoveAll(domain); err != nil {
			t.Fatal(err)
		}
		if err := copyFrom(spoil); err == nil {
			t.Errorf("%s: the mirror succeeded, want an error", spoil)
		}
		for _, name := range []string{absent, "chains"} {
			if files, err := os.ReadDir(filepath.Join(domain, name)); len(files) > 0 || err == nil {
				t.Errorf("damaged %s: directory %s has %v, %v, want no such directory", spoil, name, files, err)
			}
		}
	}
	if err := copyFrom(""); err != nil {
		t.Fatal(err)
	}
	fetchTree(t, serveFiles(t, dir), a.Chain, false)
	for _, names := range [][]string{{"b:1"}, {"a:1", "b:1"}} {
		if _, err := mirrorOf(t, h.client, dir, nil, silent).Copy(t.Context(), names); err == nil {
			t.Errorf("images %v, one of which is missing, were mirrored, want an error", names)
		}
	}
	if err := os.WriteFile(filepath.Join(domain, "chains", a.Chain), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := copyFrom(""); err == nil || !strings.Contains(err.Error(), a.Chain) {
		t.Errorf("run over a damaged chain: %v, want an error that names it", err)
	}
	b, err := os.ReadFile(filepath.Join(domain, "trees", a.Chain))
	if err != nil || !json.Valid(b) {
		t.Errorf("statement %q, %v, want JSON", b, err)
	}
}
