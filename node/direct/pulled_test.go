package direct

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/node/resolver"
	"lighter/store/repository"
	"lighter/test/testkit/tarball"
)

// What a pull has fetched is not requested again. The registry is still asked whether this node may
// read the image, and decides.
func TestPulled(t *testing.T) {
	for _, test := range []struct {
		what     string
		pulled   func(f *fake, d digest.Digest) []byte
		denied   bool
		requests string // for manifests and the config
	}{
		{"pulled", func(f *fake, d digest.Digest) []byte { return f.stored(d) }, false, "HEAD manifest"},
		{"denied", func(f *fake, d digest.Digest) []byte { return f.stored(d) }, true,
			"HEAD manifest, HEAD manifest"}, // the second one with a login
		{"without config", func(f *fake, d digest.Digest) []byte { return f.manifestOf(d) }, false,
			"GET config, HEAD manifest"},
		{"not pulled", func(*fake, digest.Digest) []byte { return nil }, false,
			"GET config, GET manifest, HEAD manifest"},
	} {
		t.Run(test.what, func(t *testing.T) {
			f := startFake(t)
			p := f.push(t, "a/image", lazyFormats[0], nil, layerOf("content"))
			isLayer := func(blob string) bool {
				return slices.ContainsFunc(p.layers, func(d v1.Descriptor) bool { return d.Digest.String() == blob })
			}
			var requests []string
			f.set(func(w http.ResponseWriter, req *http.Request) bool {
				_, blob, _ := strings.Cut(req.URL.Path, "/blobs/")
				switch {
				case strings.Contains(req.URL.Path, "/manifests/"):
					requests = append(requests, req.Method+" manifest")
					w.Header().Set("Docker-Content-Digest", p.manifest.String())
					if test.denied {
						w.WriteHeader(http.StatusForbidden)
						return true
					}
				case blob != "" && !isLayer(blob):
					requests = append(requests, req.Method+" config")
				}
				return false
			})
			m := f.images(t, t.TempDir(), []string{"**"}, nil)
			m.config.Pulled = func(_ context.Context, namespace string, d digest.Digest, _ int64) ([]byte, error) {
				if b := test.pulled(f, d); b != nil && namespace == "pulls" {
					return b, nil
				}
				return nil, errors.New("it is not there")
			}
			q := resolver.Request{Reference: f.host + "/a/image:1", Manifest: p.manifest.String(),
				Pulled: p.manifest.String(), Namespace: "pulls"}
			_, err := m.Answerer("tables").Answer(t.Context(), q)
			if test.denied != errors.Is(err, repository.ErrDenied) || !test.denied && err != nil {
				t.Errorf("error %v, want a denial: %t", err, test.denied)
			}
			slices.Sort(requests)
			if got := strings.Join(requests, ", "); got != test.requests {
				t.Errorf("requested %q, want %q", got, test.requests)
			}
		})
	}
}

// stored returns a blob or a manifest.
func (f *fake) stored(d digest.Digest) []byte {
	f.mu.Lock()
	b := f.blobs[d]
	f.mu.Unlock()
	if b != nil {
		return b
	}
	return f.manifestOf(d)
}

func (f *fake) manifestOf(d digest.Digest) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, b := range f.manifests {
		if strings.HasSuffix(name, d.String()) {
			return b
		}
	}
	return nil
}

// The end of a layer is read once: the table is in it, or only the rest of the table is requested.
func TestTableInTheEnd(t *testing.T) {
	noise := make([]byte, 2*minTail)                // a table of names is as long as the tail of a layer of names
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise) // it never fails
	var many []tarball.Item
	for i := range 1500 {
		many = append(many, tarball.File(fmt.Sprintf("%x", noise[20*i:20*i+20]), fmt.Sprint(i)))
	}
	for _, test := range []struct {
		what     string
		archive  []byte
		requests int // for the layer, with the check for ranges
	}{
		{"one file", tarball.Of(tarball.File("noise", string(noise))), 2},
		{"many files", tarball.Of(many...), 3},
	} {
		f := startFake(t)
		p := f.push(t, "a/image", lazyFormats[0], nil, test.archive)
		var ranges []string
		f.set(func(_ http.ResponseWriter, req *http.Request) bool {
			if strings.HasSuffix(req.URL.Path, p.layers[0].Digest.String()) {
				ranges = append(ranges, req.Header.Get("Range"))
			}
			return false
		})
		m := f.images(t, t.TempDir(), []string{"**"}, nil)
		if _, err := f.ask(t, m, p); err != nil {
			t.Fatal(err)
		}
		if len(ranges) != test.requests {
			t.Errorf("%s: requests for %q of a layer of %d bytes, want %d", test.what, ranges, p.layers[0].Size,
				test.requests)
		}
	}
}

// The RTT of a registry is known from the pull, and that of the hubs is theirs.
func TestEstimate(t *testing.T) {
	f := startFake(t)
	p := f.push(t, "a/image", lazyFormats[0], nil, layerOf("content"))
	m := f.images(t, t.TempDir(), []string{"**"}, nil)
	source := m.Source(farHubs{})
	if rtt, _ := source.Estimate(f.host); rtt != 0 {
		t.Errorf("before a pull: RTT %s, want none", rtt)
	}
	if _, err := f.ask(t, m, p); err != nil {
		t.Fatal(err)
	}
	if rtt, _ := source.Estimate(f.host); rtt <= 0 || rtt > time.Minute {
		t.Errorf("RTT %s, want one", rtt)
	}
	if rtt, _ := source.Estimate("registry.test"); rtt != 0 {
		t.Errorf("another registry: RTT %s, want none", rtt)
	}
	if rtt, bandwidth := source.Estimate(""); rtt != time.Hour || bandwidth != 1 {
		t.Errorf("the hubs: RTT %s, bandwidth %f, want theirs", rtt, bandwidth)
	}
}

type farHubs struct{ Hubs }

func (farHubs) Estimate(string) (time.Duration, float64) { return time.Hour, 1 }
