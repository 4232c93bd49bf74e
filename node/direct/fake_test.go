package direct

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/soci"
	"lighter/format/stargz"
	"lighter/node/resolver"
	"lighter/registries"
)

// fake is a registry in memory, with referrers. Its repositories share the blobs.
type fake struct {
	*httptest.Server
	host string

	mu        sync.Mutex
	blobs     map[digest.Digest][]byte
	manifests map[string][]byte          // by REPOSITORY/manifests/DIGEST
	referrers map[string][]v1.Descriptor // by REPOSITORY/referrers/DIGEST
	read      map[digest.Digest]int      // bytes of blobs that were asked for
	// answer answers instead of the registry, if it returns true. It may change the request.
	answer func(w http.ResponseWriter, req *http.Request) bool
}

func startFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{blobs: map[digest.Digest][]byte{}, manifests: map[string][]byte{},
		referrers: map[string][]v1.Descriptor{}, read: map[digest.Digest]int{}}
	f.Server = httptest.NewServer(f)
	f.host = strings.TrimPrefix(f.URL, "http://")
	t.Cleanup(f.Close)
	return f
}

// ServeHTTP implements http.Handler.
func (f *fake) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answer != nil && f.answer(w, req) {
		return
	}
	path := strings.TrimPrefix(req.URL.Path, "/v2/")
	b, isManifest := f.manifests[path]
	referrers, isReferrers := f.referrers[path]
	_, blob, isBlob := strings.Cut(path, "/blobs/")
	content := f.blobs[digest.Digest(blob)]
	switch {
	case path == "":
	case isManifest:
		w.Header().Set("Content-Type", v1.MediaTypeImageManifest)
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(b))
	case isReferrers:
		w.Header().Set("Content-Type", v1.MediaTypeImageIndex)
		_ = json.NewEncoder(w).Encode(v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: referrers})
	case isBlob && content != nil:
		before := counted{w, 0}
		http.ServeContent(&before, req, "", time.Time{}, bytes.NewReader(content))
		f.read[digest.Digest(blob)] += before.n
	default:
		http.NotFound(w, req)
	}
}

type counted struct {
	http.ResponseWriter
	n int
}

func (c *counted) Write(b []byte) (int, error) {
	c.n += len(b)
	return c.ResponseWriter.Write(b)
}

// set changes how the registry answers.
func (f *fake) set(answer func(w http.ResponseWriter, req *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// received returns how many bytes of a blob were sent.
func (f *fake) received(of digest.Digest) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read[of]
}

func (f *fake) blob(b []byte) v1.Descriptor {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := v1.Descriptor{Digest: digest.FromBytes(b), Size: int64(len(b))}
	f.blobs[d.Digest] = b
	return d
}

// manifest adds a manifest to a repository.
func (f *fake) manifest(repository string, b []byte) digest.Digest {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := digest.FromBytes(b)
	f.manifests[repository+"/manifests/"+id.String()] = b
	f.referrers[repository+"/referrers/"+id.String()] = []v1.Descriptor{}
	return id
}

// pushed is an image in the registry.
type pushed struct {
	repository string
	manifest   digest.Digest
	diffIDs    []digest.Digest
	layers     []v1.Descriptor
}

// A lazy format: it returns a tar as a layer with annotations, and its zTOC in SOCI's formats.
type lazyFormat struct {
	name  string
	layer func(t *testing.T, archive []byte) (blob, ztoc []byte, annotations map[string]string)
	isV2  bool // of SOCI
}

var lazyFormats = []lazyFormat{
	{name: "eStargz", layer: written(stargz.EStargz)},
	{name: "zstd:chunked", layer: written(stargz.ContainersZstd)},
	{name: "SOCI v1", layer: zipped},
	{name: "SOCI v2", layer: zipped, isV2: true},
}

func written(format stargz.Format) func(*testing.T, []byte) ([]byte, []byte, map[string]string) {
	return func(t *testing.T, archive []byte) ([]byte, []byte, map[string]string) {
		t.Helper()
		encode := compress.GzipMember(gzip.BestSpeed)
		if format != stargz.EStargz {
			encode = compress.ZstdFrame(zstd.SpeedFastest, 1)
		}
		var b bytes.Buffer
		w, err := stargz.Write(t.Context(), &b, bytes.NewReader(archive), int64(len(archive)), stargz.Serial(encode),
			stargz.Options{Format: format})
		if err != nil {
			t.Fatal(err)
		}
		return b.Bytes(), nil, w.Annotations
	}
}

func zipped(t *testing.T, archive []byte) (blob, ztoc []byte, annotations map[string]string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(archive)
	if err = errors.Join(err, z.Close()); err == nil {
		o := soci.Options{Compression: soci.Gzip, SpanSize: 100_000, Tool: "test"}
		ztoc, err = soci.Make(bytes.NewReader(b.Bytes()), o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), ztoc, nil
}

// diffIDOf returns the digest of the tar stream of a layer.
func diffIDOf(t *testing.T, blob []byte) digest.Digest {
	t.Helper()
	r, err := compress.Layer(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	id, err := digest.FromReader(r)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// push pushes an image of one layer for each archive. change, if it is not nil, may change the
// diffIDs in its config, and the zTOCs.
func (f *fake) push(
	t *testing.T, repository string, format lazyFormat, change func(p *pushed, ztocs [][]byte), archives ...[]byte,
) pushed {
	t.Helper()
	p := pushed{repository: repository}
	var ztocs [][]byte
	for _, archive := range archives {
		blob, ztoc, annotations := format.layer(t, archive)
		d := f.blob(blob)
		d.MediaType, d.Annotations = v1.MediaTypeImageLayerGzip, annotations
		p.layers, ztocs = append(p.layers, d), append(ztocs, ztoc)
		p.diffIDs = append(p.diffIDs, diffIDOf(t, blob))
	}
	if change != nil {
		change(&p, ztocs)
	}
	config, err := json.Marshal(v1.Image{RootFS: v1.RootFS{Type: "layers", DiffIDs: p.diffIDs}})
	if err != nil {
		t.Fatal(err)
	}
	m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: f.blob(config), Layers: p.layers,
		Annotations: map[string]string{}}
	index := soci.Index{Tool: "test"}
	for i, ztoc := range ztocs {
		if ztoc != nil {
			f.blob(ztoc)
			index.Layers = append(index.Layers, soci.IndexedLayer{
				Layer:     soci.Digest(chunk.Sum(f.blobs[p.layers[i].Digest])),
				MediaType: v1.MediaTypeImageLayerGzip,
				Table:     soci.Blob{Digest: soci.Digest(chunk.Sum(ztoc)), Size: int64(len(ztoc))},
			})
		}
	}
	if format.isV2 {
		m.Annotations[soci.AnnotationIndexDigest] = f.manifest(repository, index.Encode()).String()
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	p.manifest = f.manifest(repository, text)
	if len(index.Layers) > 0 && !format.isV2 {
		f.refer(repository, p.manifest, int64(len(text)), index)
	}
	return p
}

// refer adds an index of SOCI's version 1 to an image.
func (f *fake) refer(repository string, subject digest.Digest, size int64, index soci.Index) {
	index.Subject = &v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: subject, Size: size}
	text := index.Encode()
	id := f.manifest(repository, text)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.referrers[repository+"/referrers/"+subject.String()] = []v1.Descriptor{{MediaType: v1.MediaTypeImageManifest,
		ArtifactType: soci.MediaTypeIndexV1, Digest: id, Size: int64(len(text))}}
}

// images opens images that read the registry. tables and verified are patterns of paths.
func (f *fake) images(t *testing.T, root string, tables, verified []string) *Images {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	all, err := registries.New([]registries.Registry{{Host: f.host, Private: true, PlainHTTP: true}}, log, nil)
	if err != nil {
		t.Fatal(err)
	}
	of := func(paths []string) []string {
		paths = slices.Clone(paths)
		for i := range paths {
			paths[i] = f.host + "/" + paths[i]
		}
		return paths
	}
	m, err := Open(Config{Root: root, Tables: of(tables), Verified: of(verified), Registries: all,
		Leftovers: &durable.Leftovers{Log: log}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), all.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// answer asks for an image as a pull does, and returns its tree.
func (f *fake) ask(t *testing.T, m *Images, p pushed) (tree chunk.ID, err error) {
	t.Helper()
	q := resolver.Request{Reference: f.host + "/" + p.repository + "@" + p.manifest.String(),
		Manifest: p.manifest.String(), Pulled: p.manifest.String()}
	a, err := m.Answerer(Formats()...).Answer(t.Context(), q)
	if err != nil {
		return tree, err
	}
	return a.Image.Statement.Tree, nil
}
