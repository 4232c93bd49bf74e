package imagestore

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/directory"
)

// registry is the registry of a hub.
type registry struct {
	mu    sync.Mutex // guards what follows
	blobs map[string][]byte
	cuts  []int // where the first answers end with an error
	all   bool  // it answers with the whole blob always
	away  error
	asked int
	ended int // answers
}

func (r *registry) Image(_ context.Context, manifest string) (*index.ImageStatement, error) {
	return &index.ImageStatement{Manifest: manifest, Repositories: []string{"reg.example.org/a"}}, nil
}

func (r *registry) RegistryBlob(ctx context.Context, _, digest string, from func() int64,
	take func(at int64, body io.Reader) error) error {
	body, at, err := r.answer(digest, from())
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ended++
	}()
	if err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, body, at); err != nil {
		return err
	}
	return take(at, body)
}

// answer returns the next answer, whose first bytes are left out.
func (r *registry) answer(digest string, from int64) (body io.Reader, at int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	blob, ok := r.blobs[digest]
	switch {
	case r.away != nil:
		return nil, 0, r.away
	case !ok:
		return nil, 0, fmt.Errorf("no such blob: %w", chunk.ErrNotFound)
	}
	body = bytes.NewReader(blob)
	if len(r.cuts) > 0 {
		body = io.MultiReader(bytes.NewReader(blob[:r.cuts[0]]), failing{})
		r.cuts = r.cuts[1:]
	}
	if r.all {
		from = 0
	}
	return body, from, nil
}

// requests returns how many requests have begun, and how many of them have ended.
func (r *registry) requests() (begun, ended int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked, r.ended
}

func (r *registry) setAway(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = err
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

// layerText is the tar stream of a layer; no byte of it matters.
var layerText = strings.Repeat("tar \xff\x00 stream ", 100_000)

func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// withLayer returns a store with one image, whose upper layer has a diffID and a blob. id is the
// layer's ID.
func withLayer(t *testing.T, blob []byte) (h *hub, s *Store, id string) {
	t.Helper()
	h = newHub()
	h.registry.blobs[digest.FromString(layerText).String()+"0"] = blob
	h.add(t, "reg.example.org/a:1", layerText)
	s = h.open(t, t.TempDir())
	update(t, s)
	return h, s, s.list.Images[0].Layer
}

// read reads the file of a layer as a tool does.
func read(ctx context.Context, t *testing.T, s *Store, id string) (tar string, err error) {
	t.Helper()
	if !s.HasFile(id + splitSuffix) {
		t.Fatal("the layer has no file")
	}
	f, err := s.Open(id+splitSuffix, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	zip, err := gzip.NewReader(readerOf{ctx, f})
	if err != nil {
		return "", err
	}
	for lines := json.NewDecoder(zip); ; {
		var line segment
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			return tar, nil
		} else if err != nil {
			return tar, err
		}
		if line.Type != segmentType {
			t.Errorf("got a line of type %d", line.Type)
		}
		tar += string(line.Payload)
	}
}

// readerOf reads an open file with short reads.
type readerOf struct {
	ctx context.Context
	f   directory.Stream
}

func (r readerOf) Read(b []byte) (int, error) { return r.f.Read(r.ctx, b[:min(len(b), 3000)]) }

// A tool gets the tar stream of a layer byte for byte, whatever compresses its blob, and however
// often the hub's answer is cut.
func TestStream(t *testing.T) {
	zipped := gzipped(t, layerText)
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		blob  []byte
		cuts  []int
		all   bool
		asked int
	}{
		"gzip":                {blob: zipped, asked: 1},
		"zstd":                {blob: encoder.EncodeAll([]byte(layerText), nil), asked: 1},
		"plain":               {blob: []byte(layerText), asked: 1},
		"cut":                 {blob: zipped, cuts: []int{0, 100, 100, len(zipped) - 1}, asked: 5},
		"cut, without ranges": {blob: zipped, cuts: []int{100, 200}, all: true, asked: 3},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, s, id := withLayer(t, c.blob)
				h.registry.cuts, h.registry.all = c.cuts, c.all
				got, err := read(t.Context(), t, s, id)
				if err != nil || got != layerText || h.registry.asked != c.asked {
					t.Errorf("got %d bytes, %v after %d requests; want %d after %d", len(got), err, h.registry.asked,
						len(layerText), c.asked)
				}
				if err := s.Close(); err != nil || len(s.streams) != 0 {
					t.Errorf("%d files are open, %v", len(s.streams), err)
				}
			})
		})
	}
}

// A layer that cannot be had, or that is wrong, is an error, never a shorter file.
func TestStreamFails(t *testing.T) {
	zipped := gzipped(t, layerText)
	flipped := bytes.Clone(zipped)
	flipped[len(flipped)/2] ^= 1
	other := gzipped(t, layerText[:len(layerText)-1]+"!")
	for what, c := range map[string]struct {
		blob  []byte // in the registry; nil: zipped
		away  error
		gone  bool // the registry does not have the blob
		asked int
	}{
		"a flipped bit":          {blob: flipped, asked: 1},
		"another layer":          {blob: other, asked: 1},
		"an empty blob":          {blob: []byte{}, asked: 5},
		"a cut blob":             {blob: zipped[:len(zipped)-1], asked: 5},
		"a hub that is away":     {away: errors.New("connection refused"), asked: 5},
		"a hub without the blob": {gone: true, asked: 1},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, s, id := withLayer(t, zipped)
				blobs := h.registry.blobs
				for name := range blobs {
					if c.blob != nil {
						blobs[name] = c.blob
					}
					if c.gone {
						delete(blobs, name)
					}
				}
				h.registry.setAway(c.away)
				_, err := read(t.Context(), t, s, id)
				if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("got %v, want an error that is no end", err)
				}
				if err := s.Close(); err != nil || h.registry.asked != c.asked || len(s.streams) != 0 {
					t.Errorf("got %d requests, want %d; %d files are open, %v", h.registry.asked, c.asked,
						len(s.streams), err)
				}
			})
		})
	}
}

// A layer whose blob the hub does not have any more is read from another image with the same layer.
func TestStreamOfAnotherImage(t *testing.T) {
	h, s, id := withLayer(t, gzipped(t, layerText))
	other := v1.Manifest{Layers: make([]v1.Descriptor, 2)}
	plain := digest.FromString("plain")
	other.Layers[1] = v1.Descriptor{Digest: plain, Size: int64(len(layerText))}
	h.registry.blobs[plain.String()] = []byte(layerText)
	delete(h.registry.blobs, digest.FromString(layerText).String()+"0")
	text, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	key := manifestPrefix + digest.FromBytes(text).String()
	if err := writeImage(s.dir, "other", map[string][]byte{key: text}); err != nil {
		t.Fatal(err)
	}
	s.list.Images = append(s.list.Images,
		known{image: image{ID: "unrelated", Layer: s.list.Layers[0].ID}},
		known{image: image{ID: "other", Layer: id, BigDataNames: []string{key}}})
	if got, err := read(t.Context(), t, s, id); err != nil || got != layerText || h.registry.asked != 2 {
		t.Errorf("got %d bytes, %v after %d requests; want the layer after 2", len(got), err, h.registry.asked)
	}
	s.list.Images[0].Gone = true // so it is asked for last
	if got, err := read(t.Context(), t, s, id); err != nil || got != layerText || h.registry.asked != 3 {
		t.Errorf("got %d bytes, %v after %d requests; want the layer after 3", len(got), err, h.registry.asked)
	}
	s.list.Images = nil
	if _, err := read(t.Context(), t, s, id); !errors.Is(err, chunk.ErrNotFound) || h.registry.asked != 3 {
		t.Errorf("got %v after %d requests, want that no image has the layer", err, h.registry.asked)
	}
}

// Too many open files are refused, and a file that is closed or not read ends the request for its
// layer.
func TestStreamLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s, id := withLayer(t, []byte(layerText))
		for _, name := range []string{id, "x" + splitSuffix, splitSuffix} {
			if s.HasFile(name) {
				t.Errorf("%q is a file", name)
			}
		}
		var open []directory.Stream
		for range maxStreams {
			f, err := s.Open(id+splitSuffix, 0)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, f)
			synctest.Wait() // so that the first ones are fetched
		}
		if _, err := s.Open(id+splitSuffix, 0); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("one file too many: %v, want EMFILE", err)
		}
		expect := func(begun, ended int) {
			t.Helper()
			synctest.Wait()
			if gotBegun, gotEnded := h.registry.requests(); gotBegun != begun || gotEnded != ended {
				t.Errorf("%d fetches have begun and %d ended, want %d and %d", gotBegun, gotEnded, begun, ended)
			}
		}
		expect(layers, 0)
		open[0].Close()
		expect(layers+1, 1)
		time.Sleep(readerPatience + time.Second)
		expect(2*layers+1, layers+1)
		if err := s.Close(); err != nil || len(s.streams) != 0 {
			t.Errorf("%d files are open, %v", len(s.streams), err)
		}
		if _, err := s.Open(id+splitSuffix, 0); err == nil {
			t.Error("a file can be opened after the end")
		}
	})
}

// A user who does not read what was opened keeps no other user from reading, and cannot open all
// files.
func TestStreamsOfAUserAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s, id := withLayer(t, []byte(layerText))
		for range userStreams {
			if _, err := s.Open(id+splitSuffix, 1000); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait() // so that the first ones are fetched
		if _, err := s.Open(id+splitSuffix, 1000); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("one file too many of a user: %v, want EMFILE", err)
		}
		began := time.Now()
		if got, err := read(t.Context(), t, s, id); err != nil || got != layerText || time.Since(began) > 0 {
			t.Errorf("another user got %d bytes, %v after %s; want all at once", len(got), err, time.Since(began))
		}
		for range layers { // root's take the free place, and wait
			if _, err := s.Open(id+splitSuffix, 0); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		f, err := s.Open(id+splitSuffix, 1001)
		if err != nil {
			t.Fatal(err)
		}
		zip, err := gzip.NewReader(readerOf{t.Context(), f})
		if err == nil {
			_, err = io.Copy(io.Discard, zip)
		}
		if took := time.Since(began); err != nil || took > readerPatience {
			t.Errorf("a third user: %v after %s; want a turn within %s", err, took, readerPatience)
		}
		if err := s.Close(); err != nil || len(s.streams) != 0 || len(s.turns.waiting) != 0 || s.turns.all != 0 {
			t.Errorf("%d files are open, %d wait, %d have their turn, %v", len(s.streams), len(s.turns.waiting),
				s.turns.all, err)
		}
	})
}

// Opening a file waits for no hub, nor does reading its beginning. A read that is interrupted loses
// nothing.
func TestStreamIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s, id := withLayer(t, gzipped(t, layerText))
		h.registry.setAway(errors.New("connection refused"))
		began := time.Now()
		f, err := s.Open(id+splitSuffix, 0)
		if err != nil {
			t.Fatal(err)
		}
		zip, err := gzip.NewReader(readerOf{t.Context(), f})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		for err == nil {
			_, err = f.Read(ctx, make([]byte, 0))
		}
		if took := time.Since(began); !errors.Is(err, context.Canceled) || took != time.Millisecond {
			t.Errorf("got %v after %v, want that the read is interrupted", err, took)
		}
		h.registry.setAway(nil)
		if b, err := io.ReadAll(zip); err != nil || len(b) < len(layerText) {
			t.Errorf("got %d bytes, %v after an interruption", len(b), err)
		}
		f.Close()
	})
}
