package hub_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/hub/registry"
	"lighter/hub/rootdir"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// problems verifies an image, and returns the problems, one a line.
func (h *testHub) problems(name string) string {
	h.t.Helper()
	last, err := h.client.Verify(h.t.Context(), name, silent)
	if err != nil {
		h.t.Fatal(err)
	}
	if left := files(h.t, rootdir.Scratch(h.config.Root)); len(left) > 0 {
		h.t.Errorf("files in the scratch directory: %v, want none", left)
	}
	return strings.Join(last.Problems, "\n")
}

func TestVerifyNamesDamage(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	got := h.pushReady("a:1", image(lowerTar, upperTar))
	if problems := h.problems("a:1"); problems != "" {
		t.Fatalf("verify of an undamaged image: %s", problems)
	}
	dir := objectsDir(h.config)
	list := files(t, dir)
	manifest, _, _ := image(lowerTar, upperTar).build()
	flip := func(b []byte) []byte { b[len(b)/2] ^= 0x40; return b }
	half := func(b []byte) []byte { return b[:len(b)/2] }
	for name, c := range map[string]struct {
		file   string
		change func([]byte) []byte
		want   []string
	}{
		"a pack": {filepath.Join(dir, firstWith(list, "packs/")), flip,
			[]string{"unit ", "cannot be read back", `file "/`}},
		"half a pack": {filepath.Join(dir, firstWith(list, "packs/")), half,
			[]string{"unit ", `file "/etc/large": chunk `}},
		"the index":     {filepath.Join(dir, "indexes/"+got.Tree+".zst"), flip, []string{"index: "}},
		"the locations": {filepath.Join(dir, firstWith(list, "locations/")), half, []string{"locations: "}},
		"a record":      {filepath.Join(dir, firstWith(list, "layers/")), flip, []string{"layer ", "its record"}},
		"a blob": {h.blobFile(manifest.Layers[1].Digest), flip,
			[]string{"layer 2 of 2 (" + manifest.Layers[1].Digest.String()}},
		"the config": {h.blobFile(manifest.Config.Digest), flip, []string{"config: "}},
	} {
		good, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		write(t, c.file, c.change(bytes.Clone(good)))
		problems := h.problems("a:1")
		for _, want := range c.want {
			if !strings.Contains(problems, want) {
				t.Errorf("%s: problems %q, want %q among them", name, problems, want)
			}
		}
		write(t, c.file, good)
	}
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify after the repair: %s", problems)
	}
}

// Verification reads files that upper layers hide, too, and reports all damage.
func TestVerifyReadsEverything(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:1", image(lowerTar, tarball.Of(tarball.Whiteout("etc"), tarball.Whiteout("link"),
		tarball.File("top", noise(6, 3000)))))
	h.ready("a:1")
	lower := digest.FromBytes(lowerTar).String()
	below, err := h.client.Tree(t.Context(), lower)
	if err != nil {
		t.Fatal(err)
	}
	if problems := h.problems("a:1"); problems != "" {
		t.Fatalf("verify of an undamaged image: %s", problems)
	}
	dir := objectsDir(h.config)
	manifest, _, _ := image(lowerTar).build()
	for _, file := range []string{filepath.Join(dir, "indexes", below.Tree.String()+".zst"),
		h.blobFile(manifest.Layers[0].Digest)} {
		damage(t, file)
	}
	for _, pack := range files(t, filepath.Join(dir, "packs")) {
		damage(t, filepath.Join(dir, "packs", pack))
	}
	problems := h.problems("a:1")
	for _, want := range []string{"layer 1 of 2 (" + manifest.Layers[0].Digest.String(),
		"the first 1 layers: index: ", "unit ", `layer 1 of 2: file "/etc/large": chunk `} {
		if !strings.Contains(problems, want) {
			t.Errorf("problems %q, want %q among them", problems, want)
		}
	}
}

// The result of a verification names a lost pack once, and says how many problems it does not list.
func TestReportOfALostPack(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	var entries []tarball.Item
	for i := range 300 {
		entries = append(entries, tarball.File(fmt.Sprintf("file%d", i), noise(uint64(i), 10_000)))
	}
	h.pushReady("a:1", image(tarball.Of(entries...)))
	h.idle()
	dir := objectsDir(h.config)
	for _, pack := range files(t, filepath.Join(dir, "packs")) {
		if err := os.Remove(filepath.Join(dir, "packs", pack)); err != nil {
			t.Fatal(err)
		}
	}
	problems := h.problems("a:1")
	for pack := range strings.Lines(problems) {
		if strings.HasPrefix(pack, "packs/") && strings.Count(problems, pack) > 1 {
			t.Errorf("%s is more than once in %s, want once", pack, problems)
		}
	}
	for _, want := range []string{" is missing\n", `file "/file`, "\nand "} {
		if !strings.Contains(problems, want) {
			t.Errorf("problems %q, want %q among them", problems, want)
		}
	}
}

// A verification is a job: it can be cancelled, it goes on without its client and in another
// process, and the job keeps its result.
func TestVerificationIsAJob(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(lowerTar, upperTar))
	h.await(h.extents(h.ready("a:1").Tree).ID())
	h.stop()
	idle := openHub(t, h.config) // its queue does not run
	begin := func(ctx context.Context) (job int64, done chan error) {
		t.Helper()
		done = make(chan error, 1)
		go func() {
			_, err := idle.Verifier().Verify(ctx, "a:1", func(wire.Progress) error { return nil })
			done <- err
		}()
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if j, err := idle.Catalog().Jobs.Open(ctx, "verify", "a:1"); err == nil {
				return j.N, done
			}
		}
		t.Fatal("there is no job of the verification after 30 s")
		return 0, nil
	}
	n, done := begin(t.Context())
	if _, err := idle.Catalog().Jobs.Cancel(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("a cancelled verification ended with %v, want an error that says so", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n, done = begin(ctx)
	cancel()
	if err := <-done; err == nil {
		t.Error("no error for a client that has gone")
	}
	if err := idle.Close(); err != nil {
		t.Fatal(err)
	}
	damage(t, filepath.Join(objectsDir(h.config), firstWith(files(t, objectsDir(h.config)), "packs/")))
	again := runHub(t, openHub(t, h.config))
	again.idle()
	ended, err := again.client.Jobs(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(ended, func(j wire.Job) bool { return j.N == n })
	if i < 0 || ended[i].State != wire.JobDone || !strings.Contains(string(ended[i].Result), "chunk") {
		t.Errorf("ended jobs %+v, want one with its problems", ended)
	}
}

// While no file of the registry can be read, a verification waits. If one blob cannot be read, that
// is a problem of the image.
func TestVerificationWaitsForTheRegistry(t *testing.T) {
	t.Parallel()
	opened := openHub(t, localConfig(t))
	opened.Jobs().RetryDelay = 10 * time.Millisecond
	h := runHub(t, opened)
	h.pushReady("a:1", image(lowerTar, upperTar))
	h.idle()
	// block replaces a directory by a file, so nothing below it can be read.
	block := func(dir string) (unblock func()) {
		t.Helper()
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
		write(t, dir, nil)
		return func() {
			t.Helper()
			if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
				t.Fatal(err)
			}
		}
	}
	unblock := block(filepath.Join(registryDir(h.config), "docker"))
	done := make(chan error, 1)
	go func() {
		last, err := h.client.Verify(t.Context(), "a:1", silent)
		if err == nil && len(last.Problems) > 0 {
			err = errors.New(strings.Join(last.Problems, "\n"))
		}
		done <- err
	}()
	h.awaitRetry("verify", registry.ErrUnavailable)
	unblock()
	if err := <-done; err != nil {
		t.Errorf("the verification, after the registry can be read again: %v, want no problems", err)
	}
	manifest, _, _ := image(lowerTar, upperTar).build()
	unblock = block(filepath.Dir(h.blobFile(manifest.Layers[0].Digest)))
	if problems := h.problems("a:1"); !strings.Contains(problems, "layer 1 of 2 ("+manifest.Layers[0].Digest.String()) {
		t.Errorf("problems %q, want the blob that cannot be read", problems)
	}
	unblock()
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("after all files can be read again: %s, want no problems", problems)
	}
}

// awaitRetry waits until an open job of a kind has failed with an error and is to run again.
func (h *testHub) awaitRetry(kind string, because error) {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		open, err := h.client.Jobs(h.t.Context(), false)
		if err != nil {
			h.t.Fatal(err)
		}
		if slices.ContainsFunc(open, func(j wire.Job) bool {
			return j.Kind == kind && strings.Contains(j.Error, because.Error())
		}) {
			return
		}
	}
	h.t.Errorf("after a minute, no job of kind %s is to run again because of %v", kind, because)
}
