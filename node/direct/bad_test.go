package direct

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/soci"
	"lighter/format/tree"
	"lighter/store"
	"lighter/store/attachment"
	"lighter/test/testkit/cachetest"
	"lighter/test/testkit/registrytest"
	"lighter/test/testkit/tarball"
)

// expectOrdinary checks that an image is pulled as usual, and says why.
func (f *fake) expectOrdinary(t *testing.T, p pushed, why string) {
	t.Helper()
	m := f.images(t, t.TempDir(), []string{"**"}, nil)
	tree, err := f.ask(t, m, p)
	if !errors.Is(err, chunk.ErrNotFound) || !strings.Contains(err.Error(), why) {
		t.Errorf("got tree %s, %v, want %q", tree.Short(), err, why)
	}
	if s := m.Status(); s.Trees != 0 {
		t.Errorf("%d trees are kept", s.Trees)
	}
}

// asked asks for an image, and returns the paths of the objects that were read.
func (f *fake) asked(t *testing.T, p pushed) (paths []string) {
	t.Helper()
	f.set(func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.Contains(req.URL.Path, "sha256:") && !strings.Contains(req.URL.Path, "referrers") {
			paths = append(paths, req.URL.Path)
		}
		return false
	})
	if _, err := f.ask(t, f.images(t, t.TempDir(), []string{"**"}, nil), p); err != nil {
		t.Fatal(err)
	}
	return paths
}

// A registry that gives another image's manifest, config, index, zTOC or table than that which was
// asked for by its digest, as after a tag was changed between two requests, gets no tree made of
// both. No tag is read.
func TestOtherObjectsThanAskedFor(t *testing.T) {
	for _, format := range lazyFormats {
		f := startFake(t)
		p := f.push(t, "a/image", format, nil, layerOf("good"))
		other := f.push(t, "a/other", format, nil, layerOf("evil"))
		paths, others := f.asked(t, p), f.asked(t, other)
		if len(paths) < 3 || len(paths) != len(others) {
			t.Fatalf("%s: asked for %q and %q", format.name, paths, others)
		}
		for i, path := range paths {
			f.set(func(_ http.ResponseWriter, req *http.Request) bool {
				if req.URL.Path == path {
					req.URL.Path = others[i]
				}
				return false
			})
			m := f.images(t, t.TempDir(), []string{"**"}, nil)
			if tree, err := f.ask(t, m, p); err == nil || m.Status().Trees > 0 {
				t.Errorf("%s: with %s instead of %s: got tree %s", format.name, others[i], path, tree.Short())
			}
		}
	}
}

// units reads all units of an image through the source, and returns the plain bytes of the chunks,
// or the first error.
func units(t *testing.T, m *Images, p pushed) (plain []byte, err error) {
	t.Helper()
	source := m.Source(&hubs{})
	for _, d := range p.layers {
		pack, err := packOf(d)
		if err != nil {
			t.Fatal(err)
		}
		for n := range m.kept.layersOf(pack)[0].table.Units() {
			err := source.FetchUnit(t.Context(), chunk.Unit{Pack: pack, N: uint32(n)}, func(a store.Answer) error {
				b, err := io.ReadAll(a.Body)
				if err != nil {
					return err
				}
				batch, err := a.Decode(b)
				for i := 0; err == nil && i < batch.Len(); i++ {
					var c []byte
					if c, err = batch.Chunk(i); err == nil {
						plain = append(plain, c...)
					}
				}
				return err
			})
			if err != nil {
				return plain, err
			}
		}
	}
	return plain, nil
}

// A registry that gives another range of the layer than was asked for, or other bytes, gives no
// chunk: wrong bytes never reach a process or the cache, whether answers are decoded while they
// arrive or afterwards.
func TestWrongRange(t *testing.T) {
	for _, format := range lazyFormats {
		f := startFake(t)
		p := f.push(t, "a/image", format, nil, layerOf("good"))
		m := f.images(t, t.TempDir(), []string{"**"}, nil)
		tree, err := f.ask(t, m, p)
		if err != nil {
			t.Fatal(err)
		}
		refs := refsOf(t, m, tree)
		blob := f.blobs[p.layers[0].Digest]
		another, _, _ := format.layer(t, layerOf("evil"))
		another = append(another, make([]byte, len(blob))...)[:len(blob)]
		shifted := append([]byte{0}, blob[:len(blob)-1]...)
		for how, change := range decodings {
			f.set(nil)
			good := readThrough(t, observe(m, change), cachetest.NewMemory(), refs)
			if plain := bytes.Join(slices.Collect(maps.Values(good)), nil); !bytes.Contains(plain, []byte("goodgood")) {
				t.Fatalf("%s: %d bytes, without those of the program", format.name, len(plain))
			}
			for what, answer := range map[string]func(w http.ResponseWriter, req *http.Request){
				"a shifted range": func(w http.ResponseWriter, req *http.Request) {
					http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(shifted))
				},
				"a range of another layer": func(w http.ResponseWriter, req *http.Request) {
					http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(another))
				},
				"the first bytes": func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-9/%d", len(blob)))
					w.WriteHeader(http.StatusPartialContent)
					_, _ = w.Write(blob[:10])
				},
				"the whole blob": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(blob) },
			} {
				f.set(func(w http.ResponseWriter, req *http.Request) bool {
					isLayer := strings.HasSuffix(req.URL.Path, p.layers[0].Digest.String())
					if isLayer {
						answer(w, req)
					}
					return isLayer
				})
				what = fmt.Sprintf("%s, decoded %s: %s", format.name, how, what)
				if failed := readWrong(t, m, change, what, good); failed == 0 {
					t.Errorf("%s: all %d chunks could be read", what, len(good))
				}
			}
		}
	}
}

// If the registry loses a layer while containers run, reads fail with an error that says so, unless
// another repository has the same image. When the layer is there again, reads go on. So it is in
// each format, and for layers that the node has read as a whole.
func TestLostBlob(t *testing.T) {
	for _, format := range append(slices.Clone(lazyFormats), small) {
		f := startFake(t)
		layers := [][]byte{layerOf("large"), layerOf("small")}
		p, same := f.push(t, "a/image", format, nil, layers...), f.push(t, "b/image", format, nil, layers...)
		m := f.images(t, t.TempDir(), []string{"**"}, nil)
		if _, err := f.ask(t, m, p); err != nil {
			t.Fatal(err)
		}
		lose := func(d v1.Descriptor, repositories ...string) {
			f.set(func(w http.ResponseWriter, req *http.Request) bool {
				isLost := slices.ContainsFunc(repositories, func(r string) bool {
					return req.URL.Path == "/v2/"+r+"/blobs/"+d.Digest.String()
				})
				if isLost {
					http.NotFound(w, req)
				}
				return isLost
			})
		}
		isLost := func(err error, d v1.Descriptor) bool {
			return errors.Is(err, chunk.ErrNotFound) && strings.Contains(err.Error(), d.Digest.String())
		}
		for _, d := range p.layers {
			lose(d, "a/image")
			if _, err := units(t, m, p); !isLost(err, d) {
				t.Errorf("%s: got %v, want that %s is lost", format.name, err, d.Digest)
			}
			lose(d)
			if _, err := units(t, m, p); err != nil {
				t.Errorf("%s: there again: %v", format.name, err)
			}
		}
		if _, err := f.ask(t, m, same); err != nil {
			t.Fatal(err)
		}
		for _, d := range p.layers {
			lose(d, "a/image")
			if _, err := units(t, m, p); err != nil {
				t.Errorf("%s: although another repository has it: %v", format.name, err)
			}
			lose(d, "a/image", "b/image")
			if _, err := units(t, m, p); !isLost(err, d) {
				t.Errorf("%s: lost everywhere: got %v, want that %s is lost", format.name, err, d.Digest)
			}
			lose(d)
			if _, err := units(t, m, p); err != nil {
				t.Errorf("%s: there again: %v", format.name, err)
			}
		}
	}
}

// A layer whose footer points outside of it has no table.
func TestFooterThatPointsOutside(t *testing.T) {
	f := startFake(t)
	outside := lazyFormat{layer: func(t *testing.T, archive []byte) ([]byte, []byte, map[string]string) {
		blob, _, annotations := lazyFormats[0].layer(t, archive)
		tail := blob[len(blob)-51:]
		copy(tail[16:], "00000fffffffffff") // the hexadecimal offset of the table
		return blob, nil, annotations
	}}
	f.expectOrdinary(t, f.push(t, "a/image", outside, nil, layerOf("good")), "table at 17592186044415")
}

// An index of SOCI that was made for another platform's manifest does not count, whether it refers
// to that or the image names it.
func TestIndexForAnotherPlatform(t *testing.T) {
	f := startFake(t)
	plain := lazyFormat{layer: func(t *testing.T, archive []byte) ([]byte, []byte, map[string]string) {
		blob, _, _ := zipped(t, archive)
		return blob, nil, nil
	}}
	amd64, arm64 := f.push(t, "a/image", plain, nil, layerOf("amd64")), f.push(t, "a/image", lazyFormats[2], nil,
		layerOf("arm64"))
	of := func(p pushed) string { return p.repository + "/referrers/" + p.manifest.String() }
	f.referrers[of(amd64)] = f.referrers[of(arm64)]
	f.expectOrdinary(t, amd64, "is that of "+arm64.manifest.String())

	// The zTOCs of an index that an image names are those of other layers. So its own, which is
	// small, is read as a whole.
	v2 := f.push(t, "a/image", lazyFormats[3], nil, layerOf("arm64"))
	named := f.withIndex(t, amd64, f.indexOf(t, v2))
	m := f.images(t, t.TempDir(), []string{"**"}, nil)
	if _, err := f.ask(t, m, named); err != nil {
		t.Fatal(err)
	}
	if plain, err := units(t, m, named); err != nil || !bytes.Contains(plain, []byte("amd64amd64")) {
		t.Errorf("%d bytes, %v", len(plain), err)
	}
}

// An index that a list names and the registry has lost, and one of another image, do not hide the
// right one.
func TestSeveralSOCIIndexes(t *testing.T) {
	f := startFake(t)
	p := f.push(t, "a/image", lazyFormats[2], nil, layerOf("good"))
	other := f.push(t, "a/image", lazyFormats[2], nil, layerOf("other"))
	of := func(p pushed) string { return p.repository + "/referrers/" + p.manifest.String() }
	right, lost := f.referrers[of(p)][0], f.referrers[of(p)][0]
	lost.Digest = digest.FromString("lost")
	wrong := []v1.Descriptor{lost, f.referrers[of(other)][0]}
	f.referrers[of(p)] = append(wrong, right)
	if _, err := f.ask(t, f.images(t, t.TempDir(), []string{"**"}, nil), p); err != nil {
		t.Error(err)
	}
	f.referrers[of(p)] = wrong
	f.expectOrdinary(t, p, lost.Digest.String())
	f.referrers[of(p)] = append(slices.Repeat(wrong, 2), right) // more than are looked at
	f.expectOrdinary(t, p, "is that of "+other.manifest.String())
}

// indexOf returns the digest of the index that an image names.
func (f *fake) indexOf(t *testing.T, p pushed) string {
	t.Helper()
	var m v1.Manifest
	if err := json.Unmarshal(f.manifests[p.repository+"/manifests/"+p.manifest.String()], &m); err != nil {
		t.Fatal(err)
	}
	return m.Annotations[soci.AnnotationIndexDigest]
}

// withIndex adds an image that names an index.
func (f *fake) withIndex(t *testing.T, p pushed, index string) pushed {
	t.Helper()
	var m v1.Manifest
	if err := json.Unmarshal(f.manifests[p.repository+"/manifests/"+p.manifest.String()], &m); err != nil {
		t.Fatal(err)
	}
	m.Annotations = map[string]string{soci.AnnotationIndexDigest: index}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	p.manifest = f.manifest(p.repository, text)
	return p
}

// An image with more entries than the limit is pulled as usual, in each format. Tables of 10
// million entries are tested in the packages of the formats.
func TestTooManyEntries(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	ref, _ := r.Push(t, plainImage(t, 1, 2, 3), "team/image:1")
	im := attachTo(t, ref, key, attachment.Place{})
	before := limits
	t.Cleanup(func() { limits = before })
	limits = tree.Limits{Entries: 2}
	const why = "more than the limit of 2 entries"
	for _, format := range lazyFormats {
		f := startFake(t)
		f.expectOrdinary(t, f.push(t, "a/image", format, nil, layerOf("good")), why)
	}
	m := believing(t, r, t.TempDir(), key)
	answer, err := m.Answerer("attached").Answer(t.Context(), pulled(im, ref))
	if !errors.Is(err, chunk.ErrNotFound) || answer != nil || !strings.Contains(err.Error(), why) {
		t.Errorf("an attached index: answer %+v, %v, want %q", answer, err, why)
	}
	if s := m.Status(); s.Trees != 0 {
		t.Errorf("%d trees are kept", s.Trees)
	}
	limits = tree.Limits{Entries: 3}
	if _, err := m.Answerer("attached").Answer(t.Context(), pulled(im, ref)); err != nil {
		t.Errorf("an attached index of 3 entries: %v", err)
	}
}

// A manifest and its config that disagree, and layers with other digests than SHA-256, make an
// ordinary pull.
func TestContradictoryManifests(t *testing.T) {
	for why, change := range map[string]func(p *pushed, _ [][]byte){
		"has 1 layers, and its config 2 diffIDs": func(p *pushed, _ [][]byte) {
			p.diffIDs = append(p.diffIDs, p.diffIDs[0])
		},
		"has an invalid diffID": func(p *pushed, _ [][]byte) { p.diffIDs = []digest.Digest{"sha256:../../etc"} },
		"is not a SHA-256": func(p *pushed, _ [][]byte) {
			p.layers[0].Digest = digest.SHA512.FromString("")
		},
	} {
		f := startFake(t)
		f.expectOrdinary(t, f.push(t, "a/image", lazyFormats[0], change, layerOf("good")), why)
	}
}

// A small layer that inflates to gigabytes makes an ordinary pull, if it is read as a whole.
func TestBomb(t *testing.T) {
	f := startFake(t)
	format := lazyFormat{isV2: true, layer: func(t *testing.T, archive []byte) ([]byte, []byte, map[string]string) {
		if archive != nil {
			return zipped(t, archive)
		}
		return bomb(t), nil, nil
	}}
	p := f.push(t, "a/image", format, nil, layerOf("good"), nil)
	f.expectOrdinary(t, p, "more than the limit of")
}

// bomb returns a file of 2 GiB of zeros in a layer of zstd, of about 200 kB.
func bomb(t *testing.T) []byte {
	t.Helper()
	const size, part = 2 << 30, 8 << 20
	encode := compress.ZstdFrame(zstd.SpeedFastest, 1)
	header, err := encode(tarball.Open(tarball.Other(tarball.TypeFile, "zeros", tarball.Claim(size))))
	if err != nil {
		t.Fatal(err)
	}
	zeros, err := encode(make([]byte, part))
	if err != nil {
		t.Fatal(err)
	}
	return append(header, bytes.Repeat(zeros, size/part)...)
}
