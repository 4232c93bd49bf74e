package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

func openTest(t *testing.T) *Registry {
	t.Helper()
	r, err := Open(t.Context(), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// put stores b as a blob.
func put(t *testing.T, r *Registry, repository string, b []byte) v1.Descriptor {
	t.Helper()
	d := v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: digest.FromBytes(b), Size: int64(len(b))}
	if err := r.Repository(repository).NewUpload(d.Digest.String(), d.Size).Put(t.Context(),
		bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	return d
}

func manifestOf(t *testing.T, config, layer v1.Descriptor) Manifest {
	t.Helper()
	config.MediaType = v1.MediaTypeImageConfig
	m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: config, Layers: []v1.Descriptor{layer}}
	m.SchemaVersion = 2
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return Manifest{MediaType: m.MediaType, Digest: digest.FromBytes(b).String(), Bytes: b}
}

// stepReader returns one piece of the channel with each Read.
type stepReader chan []byte

func (s stepReader) Read(b []byte) (int, error) {
	piece, more := <-s
	if !more {
		return 0, io.EOF
	}
	return copy(b, piece), nil
}

func TestUploadIsReadWhileItIsWritten(t *testing.T) {
	r := openTest(t)
	whole := bytes.Repeat([]byte("0123456789abcdef"), 3*copyBuffer/16+1)
	u := r.Repository("a/b").NewUpload(digest.FromBytes(whole).String(), int64(len(whole)))
	steps := make(stepReader)
	ended := make(chan error, 1)
	go func() {
		err := u.Put(t.Context(), steps)
		u.End(err)
		ended <- err
	}()
	early := u.Open(t.Context())
	defer early.Close()
	var got []byte
	buf := make([]byte, 100_000)
	for rest := whole; len(rest) > 0; rest = rest[min(len(rest), copyBuffer):] {
		steps <- rest[:min(len(rest), copyBuffer)]
		if len(rest) <= copyBuffer {
			break
		}
		// All pieces up to this one can be read before the next one is written.
		for len(got) < len(whole)-len(rest)+copyBuffer {
			n, err := early.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, buf[:n]...)
		}
	}
	close(steps)
	last, err := io.ReadAll(early)
	if err != nil || !bytes.Equal(append(got, last...), whole) {
		t.Errorf("read %d bytes (%v), want %d", len(got)+len(last), err, len(whole))
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	late := u.Open(t.Context())
	defer late.Close()
	if b, err := io.ReadAll(late); err != nil || !bytes.Equal(b, whole) {
		t.Errorf("read %d bytes after the upload (%v), want %d", len(b), err, len(whole))
	}
}

func TestFailedUploadFailsItsReaders(t *testing.T) {
	r := openTest(t)
	b := bytes.Repeat([]byte("x"), 2*copyBuffer)
	for want, u := range map[string]*Upload{
		"is corrupt":     r.Repository("a").NewUpload(digest.FromString("else").String(), int64(len(b))),
		"is truncated":   r.Repository("a").NewUpload(digest.FromBytes(b).String(), int64(len(b))+1),
		"is longer than": r.Repository("a").NewUpload(digest.FromBytes(b).String(), int64(len(b))-1),
	} {
		read := make(chan error, 1)
		go func() {
			_, err := io.ReadAll(u.Open(context.Background()))
			read <- err
		}()
		err := u.Put(t.Context(), bytes.NewReader(b))
		u.End(err)
		for _, err := range []error{err, <-read, u.Wait(t.Context())} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got error %v, want %q", err, want)
			}
		}
		if there, err := r.Repository("a").Link(t.Context(), digest.FromBytes(b).String()); there || err != nil {
			t.Errorf("%s: Link = %t, %v, want no blob", want, there, err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := io.ReadAll(r.Repository("a").NewUpload("sha256:1", 1).Open(gone)); !errors.Is(err, context.Canceled) {
		t.Errorf("read with a canceled context: %v, want Canceled", err)
	}
}

func TestBlobIsStoredOnceForAllRepositories(t *testing.T) {
	r := openTest(t)
	d := put(t, r, "one", []byte("blob"))
	if _, err := r.Repository("two").Open(t.Context(), d.Digest.String()); !errors.Is(err, ErrNotFound) {
		t.Errorf("open another repository's blob: %v, want ErrNotFound", err)
	}
	for range 2 {
		if there, err := r.Repository("two").Link(t.Context(), d.Digest.String()); !there || err != nil {
			t.Fatalf("LinkBlob = %t, %v, want true", there, err)
		}
	}
	if b, err := r.Repository("two").read(t.Context(), d.Digest, 4); err != nil || string(b) != "blob" {
		t.Errorf("ReadBlob = %q, %v, want %q", b, err, "blob")
	}
	if _, err := r.Repository("two").read(t.Context(), d.Digest, 3); err == nil {
		t.Error("ReadBlob beyond the limit: got no error")
	}
}

func TestManifestsArePutAndDeleted(t *testing.T) {
	r := openTest(t)
	ctx := t.Context()
	m := manifestOf(t, put(t, r, "a", []byte("{}")), put(t, r, "a", []byte("layer")))
	if err := r.Repository("a").PutManifest(ctx, "1", m); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"1", m.Digest} {
		got, err := r.Repository("a").Manifest(ctx, ref)
		if err != nil || got.Digest != m.Digest || got.MediaType != m.MediaType || !bytes.Equal(got.Bytes, m.Bytes) {
			t.Errorf("manifest %s: got %+v, %v, want %+v", ref, got, err, m)
		}
	}
	if err := r.Repository("b").PutManifest(ctx, "1", m); err == nil {
		t.Error("put a manifest without its blobs: got no error")
	}
	wrong := m
	wrong.Digest = digest.FromString("else").String()
	if err := r.Repository("a").PutManifest(ctx, "1", wrong); err == nil {
		t.Error("put a manifest with a wrong digest: got no error")
	}
	if err := r.Repository("a").Delete(ctx, m.Digest); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"1", m.Digest, "never"} {
		if _, err := r.Repository("a").Manifest(ctx, ref); !errors.Is(err, ErrNotFound) {
			t.Errorf("deleted manifest %s: %v, want ErrNotFound", ref, err)
		}
		if err := r.Repository("a").Delete(ctx, ref); err != nil {
			t.Errorf("delete %s again: %v", ref, err)
		}
	}
	if _, err := r.Repository("No Name").Manifest(ctx, "1"); err == nil {
		t.Error("manifest of an invalid repository name: got no error")
	}
}

// events records its calls and returns err.
type events struct {
	calls []string
	err   error
}

func (e *events) Lock(string) (unlock func()) { return func() {} }

func (e *events) Pushed(_ context.Context, repository, tag string) error {
	e.calls = append(e.calls, "pushed "+repository+" "+tag)
	return e.err
}

func (e *events) Deleted(_ context.Context, repository, reference string) error {
	e.calls = append(e.calls, "deleted "+repository+" "+reference)
	return e.err
}

func TestClientsAreAnsweredAfterEvents(t *testing.T) {
	r := openTest(t)
	m := manifestOf(t, put(t, r, "a/b", []byte("{}")), put(t, r, "a/b", []byte("layer")))
	e := &events{}
	server := httptest.NewServer(r.Handler(e))
	defer server.Close()
	do := func(method, path string, want int) {
		t.Helper()
		req, err := http.NewRequest(method, server.URL+path, bytes.NewReader(m.Bytes))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", m.MediaType)
		req.Header.Set("Accept", m.MediaType)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s %s: got %s, want %d", method, path, res.Status, want)
		}
	}
	do("PUT", "/v2/a/b/manifests/1", http.StatusCreated)
	do("PUT", "/v2/a/b/manifests/"+m.Digest, http.StatusCreated)
	do("PUT", "/v2/other/manifests/1", http.StatusBadRequest) // its blobs do not exist
	do("GET", "/v2/a/b/manifests/1", http.StatusOK)
	do("DELETE", "/v2/a/b/manifests/"+m.Digest, http.StatusAccepted)
	do("DELETE", "/v2/a/b/manifests/"+m.Digest, http.StatusNotFound)
	if got := strings.Join(e.calls, ", "); got != "pushed a/b 1, deleted a/b "+m.Digest {
		t.Errorf("events received %q", got)
	}
	e.err = errors.New("the disk is full")
	do("PUT", "/v2/a/b/manifests/1", http.StatusServiceUnavailable)
}
