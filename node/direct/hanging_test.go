package direct

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/store/attachment"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/registrytest"
)

// hang makes a registry never answer the requests whose path has a part.
func hang(r *registrytest.Registry, part string) {
	r.Spoil(func(_ http.ResponseWriter, req *http.Request) bool {
		hangs := strings.Contains(req.URL.Path, part)
		if hangs {
			<-req.Context().Done() // the client is gone
		}
		return hangs
	})
}

// A registry that hangs while an image's tree is made does not delay the pull for longer than it
// waits, or than the time in which trees are made. The error names the image's repository. It does
// not say that the image has to be pulled as usual: it may start lazily the next time.
func TestRegistryThatHangs(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	im, ref, dir := twoFormats(t, r, key)
	manifest, err := layout.Manifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	repository := r.Host + "/team/image"
	for what, part := range map[string]string{
		"the login": "/v2/", "the manifest": "/manifests/sha256:", "the config": manifest.Config.Digest.String(),
		"a table": manifest.Layers[1].Digest.String(),
	} {
		for why, limit := range map[string]struct{ pull, tree time.Duration }{
			"no answer in time":            {200 * time.Millisecond, 2 * time.Second},
			"has not arrived within 200ms": {time.Minute, 200 * time.Millisecond},
		} {
			m := believing(t, r, t.TempDir(), key)
			m.config.Tables, m.makeTime = []string{"**"}, limit.tree
			hang(r, part)
			ctx, cancel := context.WithTimeoutCause(t.Context(), limit.pull, errors.New("no answer in time"))
			begin := time.Now()
			answer, err := m.Answerer("tables").Answer(ctx, pulled(im, ref))
			took := time.Since(begin)
			cancel()
			if err == nil || errors.Is(err, chunk.ErrNotFound) || !strings.Contains(err.Error(), repository) ||
				!strings.Contains(err.Error(), why) || took >= max(limit.pull, limit.tree) {
				t.Errorf("%s hangs: answer %+v, error %v after %s; want %q of %s", what, answer, err, took, why,
					repository)
			}
			r.Spoil(nil)
			if limit.tree < limit.pull { // else the first try still waits for the registry
				m.makeTime = makeTimeout
				if _, err := m.Answerer("tables").Answer(t.Context(), pulled(im, ref)); err != nil {
					t.Errorf("%s, there again: %v", what, err)
				}
			}
		}
	}
}

// If a registry hangs when it is asked for what is attached to an image, for an index in the
// repository that has indexes by their chain, or for a blob of this index, there is time left for
// the tables of contents.
func TestRegistryOfIndexesHangs(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	im, ref, _ := twoFormats(t, r, key)
	if _, err := attachment.RemoveAll(t.Context(), im, attachment.Place{}, nil); err != nil {
		t.Fatal(err)
	}
	indexes := attachment.Place{Chains: r.Host + "/indexes"}
	attachTo(t, ref, key, indexes)
	found, _, err := attachment.List(t.Context(), im, indexes)
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	for what, part := range map[string]string{"the list": "/referrers/", "the other repository": "/v2/indexes/",
		"a blob": "/v2/indexes/blobs/" + found[0].Contents.Index.Digest.String()} {
		m := believing(t, r, t.TempDir(), key, r.Host+"/indexes")
		m.config.Tables, m.makeTime = []string{"**"}, 8*time.Second
		hang(r, part)
		answer, err := m.Answerer("attached", "tables").Answer(t.Context(), pulled(im, ref))
		if err != nil || !strings.HasPrefix(answer.Source, "the tables of contents") {
			t.Errorf("%s hangs: answer %+v, %v; want one from the tables", what, answer, err)
		}
		r.Spoil(nil)
	}
}

// Images of a registry that hangs leave a turn to images of others.
func TestTurns(t *testing.T) {
	r, hangs, key := registrytest.Start(t, true), registrytest.Start(t, true), signer(1)
	im, ref, dir := twoFormats(t, r, key)
	manifest, err := layout.Manifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	var hanging []string
	for _, name := range []string{"a", "b", "c"} {
		ref, _ := hangs.Push(t, dir, name+"/image:1")
		hanging = append(hanging, ref)
	}
	tables := make(chan struct{}, makesOfRegistry*len(manifest.Layers)) // that were asked for
	answers := make(chan struct{})
	hangs.Spoil(func(_ http.ResponseWriter, req *http.Request) bool {
		_, blob, _ := strings.Cut(req.URL.Path, "/blobs/")
		if blob == "" || blob == manifest.Config.Digest.String() {
			return false
		}
		from, to, _ := strings.Cut(strings.TrimPrefix(req.Header.Get("Range"), "bytes="), "-")
		if from != to { // not to see whether the registry has ranges
			select {
			case tables <- struct{}{}:
			default: // of the image that waits for its turn
			}
		}
		<-answers
		return false
	})
	m := believingAll(t, []*registrytest.Registry{r, hangs}, 0, t.TempDir(), key)
	m.config.Tables = []string{"**"}
	var pulls sync.WaitGroup
	defer pulls.Wait()
	answer := sync.OnceFunc(func() { close(answers) })
	defer answer()
	for _, ref := range hanging {
		pulls.Go(func() {
			if _, err := m.Answerer("tables").Answer(t.Context(), pulled(im, ref)); err != nil {
				t.Errorf("image %s, after its registry has answered: %v", ref, err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), makeTimeout/2)
	defer cancel()
	for range cap(tables) {
		select {
		case <-tables:
		case <-ctx.Done():
			t.Fatal("two images of the registry that hangs did not ask for their tables")
		}
	}
	if _, err := m.Answerer("tables").Answer(ctx, pulled(im, ref)); err != nil {
		t.Errorf("beside images of a registry that hangs: %v", err)
	}
	from, err := m.open(hangs.Host + "/d/image")
	if err != nil {
		t.Fatal(err)
	}
	late, stop := within(ctx, 100*time.Millisecond)
	defer stop()
	const why = "wait until other images are read: no answer within 100ms"
	if _, err := m.turns.wait(late, from); err == nil || err.Error() != why {
		t.Errorf("a further image of the registry that hangs: %v, want %q", err, why)
	}
}

// Images whose registry takes one connection at a time are answered one after the other.
func TestTurnsOfOneConnection(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	im, _, dir := twoFormats(t, r, key)
	m := believingAll(t, []*registrytest.Registry{r}, 1, t.TempDir(), key)
	m.config.Tables = []string{"**"}
	var pulls sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		ref, _ := r.Push(t, dir, name+"/image:1")
		pulls.Go(func() {
			if _, err := m.Answerer(Formats()...).Answer(t.Context(), pulled(im, ref)); err != nil {
				t.Errorf("image %s: %v", ref, err)
			}
		})
	}
	pulls.Wait()
}
