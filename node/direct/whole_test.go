package direct

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/soci"
)

// small is SOCI's format, but layers with another program than "large" have no zTOC: they are read
// as a whole.
var small = lazyFormat{name: "SOCI with small layers", isV2: true,
	layer: func(t *testing.T, archive []byte) (blob, ztoc []byte, annotations map[string]string) {
		blob, ztoc, _ = zipped(t, archive)
		if !bytes.Contains(archive, []byte("large")) {
			ztoc = nil
		}
		return blob, ztoc, nil
	}}

// Trouble with a registry while an image is read is no property of the image: the error does not
// say that the image is not direct, and an image that waits for its verification goes on to wait.
func TestTroubleIsNoVerdict(t *testing.T) {
	f := startFake(t)
	p := f.push(t, "a/image", small, nil, layerOf("large"), layerOf("small"))
	layer := p.layers[1].Digest
	damaged := slices.Clone(f.blobs[layer])
	damaged[len(damaged)/2] ^= 0xff
	cut := damaged[:len(damaged)/2]
	for what, answer := range map[string]func(w http.ResponseWriter, req *http.Request){
		"status 500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"wrong bytes": func(w http.ResponseWriter, req *http.Request) {
			http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(damaged))
		},
		"a blob that is too short": func(w http.ResponseWriter, req *http.Request) {
			http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(cut))
		},
	} {
		m := f.images(t, t.TempDir(), []string{"a/*"}, nil)
		waiting := f.images(t, t.TempDir(), nil, []string{"a/*"})
		if _, err := f.ask(t, waiting, p); !errors.Is(err, errUnverified) {
			t.Fatal(err)
		}
		f.set(func(w http.ResponseWriter, req *http.Request) bool {
			isLayer := strings.HasSuffix(req.URL.Path, layer.String()) && req.Header.Get("Range") != "bytes=0-0"
			if isLayer {
				answer(w, req)
			}
			return isLayer
		})
		if _, err := f.ask(t, m, p); err == nil || errors.Is(err, chunk.ErrNotFound) ||
			!strings.Contains(err.Error(), layer.String()) {
			t.Errorf("%s: %v, want an error of the registry", what, err)
		}
		verifyAll(t, waiting)
		if s := waiting.Status(); s.Waiting != 1 || s.Failed == "" {
			t.Errorf("%s: %+v, want that the image waits", what, s)
		}
		f.set(nil)
		if _, err := f.ask(t, m, p); err != nil {
			t.Errorf("after %s: %v", what, err)
		}
	}
}

// A table that arrives damaged is one of wrong bytes, in each format.
func TestDamagedTable(t *testing.T) {
	for _, format := range lazyFormats[:2] {
		f := startFake(t)
		p := f.push(t, "a/image", format, nil, layerOf("good"))
		m := f.images(t, t.TempDir(), []string{"**"}, nil)
		d := p.layers[0]
		damaged := slices.Clone(f.blobs[d.Digest])
		for i := range damaged[:len(damaged)-200] { // the table, but not the footer
			damaged[i] ^= 0xff
		}
		f.set(func(w http.ResponseWriter, req *http.Request) bool {
			isLayer := strings.HasSuffix(req.URL.Path, d.Digest.String())
			if isLayer {
				http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(damaged))
			}
			return isLayer
		})
		if _, err := f.ask(t, m, p); !errors.As(err, new(*chunk.InvalidError)) || errors.Is(err, chunk.ErrNotFound) ||
			!strings.Contains(err.Error(), d.Digest.String()) {
			t.Errorf("%s: %v, want an InvalidError with the layer's digest", format.name, err)
		}
	}
}

// A table that is damaged in its layer, which has the digest that the manifest says, makes an
// ordinary pull. The layer is read once to find that out.
func TestTableIsDamagedInItsLayer(t *testing.T) {
	for _, format := range lazyFormats[:2] {
		f := startFake(t)
		var layer string
		p := f.push(t, "a/image", format, func(p *pushed, _ [][]byte) {
			damaged := slices.Clone(f.blobs[p.layers[0].Digest])
			for i := range damaged[:len(damaged)-200] { // the table, but not the footer
				damaged[i] ^= 0xff
			}
			p.layers[0].Digest = f.blob(damaged).Digest
			layer = p.layers[0].Digest.String()
		}, layerOf("good"))
		m := f.images(t, t.TempDir(), []string{"**"}, nil)
		for pull, want := range []int{1, 0} {
			reads := 0
			f.set(func(_ http.ResponseWriter, req *http.Request) bool {
				if strings.HasSuffix(req.URL.Path, layer) && req.Header.Get("Range") == "" {
					reads++
				}
				return false
			})
			if _, err := f.ask(t, m, p); !errors.Is(err, chunk.ErrNotFound) || !strings.Contains(err.Error(), layer) {
				t.Errorf("%s, pull %d: %v, want an error with the layer that the image is not direct", format.name,
					pull, err)
			}
			if reads != want {
				t.Errorf("%s, pull %d: %d reads of the whole layer, want %d", format.name, pull, reads, want)
			}
		}
	}
}

// A layer that is read to be verified, and arrives with other bytes, is no wrong layer.
func TestDamagedPieces(t *testing.T) {
	f := startFake(t)
	p := f.push(t, "a/image", lazyFormats[0], nil, layerOf("good"))
	from, err := f.images(t, t.TempDir(), nil, nil).open(f.host + "/a/image")
	if err != nil {
		t.Fatal(err)
	}
	f.blobs[p.layers[0].Digest][100] ^= 0xff
	_, err = io.Copy(io.Discard, newPieces(t.Context(), from, p.layers[0], atOnce))
	if !errors.As(err, new(*chunk.InvalidError)) || !strings.Contains(err.Error(), p.layers[0].Digest.String()) {
		t.Errorf("%v, want an InvalidError with the layer's digest", err)
	}
}

// A small layer that is damaged in the registry, and has the digest that the manifest says, makes
// an ordinary pull.
func TestDamagedLayer(t *testing.T) {
	f := startFake(t)
	var damaged v1.Descriptor
	p := f.push(t, "a/image", small, func(p *pushed, _ [][]byte) {
		blob := slices.Clone(f.blobs[p.layers[1].Digest])
		blob[len(blob)/2] ^= 0xff
		damaged = f.blob(blob)
		p.layers[1] = damaged
	}, layerOf("large"), layerOf("small"))
	f.expectOrdinary(t, p, damaged.Digest.String())
}

// A list of what a start reads that cannot be read now makes no tree without the list. One that is
// gone does.
func TestPrefetchThatCannotBeRead(t *testing.T) {
	f := startFake(t)
	p := f.push(t, "a/image", lazyFormats[3], nil, layerOf("good"))
	list := f.blob([]byte("[]"))
	index, err := soci.DecodeIndex(f.manifests["a/image/manifests/"+f.indexOf(t, p)])
	if err != nil {
		t.Fatal(err)
	}
	index.Layers[0].Prefetch = &soci.Blob{Digest: soci.Digest(chunk.Sum([]byte("[]"))), Size: list.Size}
	p = f.withIndex(t, p, f.manifest("a/image", index.Encode()).String())
	for _, status := range []int{http.StatusInternalServerError, http.StatusNotFound} {
		f.set(func(w http.ResponseWriter, req *http.Request) bool {
			isList := strings.HasSuffix(req.URL.Path, list.Digest.String())
			if isList {
				w.WriteHeader(status)
			}
			return isList
		})
		_, err := f.ask(t, f.images(t, t.TempDir(), []string{"**"}, nil), p)
		if isGone := status == http.StatusNotFound; (err == nil) != isGone || errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("status %d: %v", status, err)
		}
	}
}
