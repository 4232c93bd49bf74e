package direct

import (
	"context"
	"errors"
	"net/http"
	"strings"
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

// If a registry hangs when it is asked for what is attached to an image, or for an index in the
// repository that has indexes by their chain, there is time left for the tables of contents.
func TestRegistryOfIndexesHangs(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	im, ref, _ := twoFormats(t, r, key)
	if _, err := attachment.RemoveAll(t.Context(), im, attachment.Place{}, nil); err != nil {
		t.Fatal(err)
	}
	for what, part := range map[string]string{"the list": "/referrers/", "the other repository": "/v2/indexes/"} {
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
