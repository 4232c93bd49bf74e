package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

func openTest(t *testing.T) *Registry {
	t.Helper()
	r, err := Open(t.Context(), Dir(t.TempDir()), nil, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// put stores b as a blob.
func put(t *testing.T, r *Registry, repository string, b []byte) v1.Descriptor {
	t.Helper()
	d := v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: digest.FromBytes(b), Size: int64(len(b))}
	if _, err := store(t, r.Repository(repository), d.Digest.String(), d.Size, b); err != nil {
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

// store stores b as a blob, and returns what is read meanwhile.
func store(t *testing.T, r Repository, blob string, size int64, b []byte) ([]byte, error) {
	t.Helper()
	stored, err := r.Store(t.Context(), blob, size, io.NopCloser(bytes.NewReader(b)))
	if err != nil {
		t.Fatal(err)
	}
	read, err := io.ReadAll(stored)
	return read, errors.Join(err, stored.Close())
}

// uploads lists the files of unfinished uploads.
func uploads(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(path, "/_uploads/") {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestBlobIsStoredWhileItIsRead(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(t.Context(), Dir(dir), nil, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	a := r.Repository("a/b")
	whole := bytes.Repeat([]byte("0123456789abcdef"), 3*uploadBuffer/16+1)
	id, size := digest.FromBytes(whole).String(), int64(len(whole))
	for want, bad := range map[string]struct {
		blob string
		size int64
	}{
		"is corrupt":     {digest.FromString("else").String(), size},
		"is truncated":   {id, size + 1},
		"is longer than": {id, size - 1},
	} {
		if _, err := store(t, a, bad.blob, bad.size, whole); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("store a bad blob: error %v, want one with %q", err, want)
		}
	}
	early, err := a.Store(t.Context(), id, size, io.NopCloser(bytes.NewReader(whole)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(early, make([]byte, len(whole))); err != nil {
		t.Fatal(err)
	}
	if err := early.Close(); err != nil { // before io.EOF
		t.Fatal(err)
	}
	if linked, err := a.Link(t.Context(), id); linked || err != nil {
		t.Errorf("a blob that was not read to its end is stored: %v (%v), want it not to be", linked, err)
	}
	if left := uploads(t, dir); len(left) > 0 {
		t.Errorf("files of unfinished uploads: %q, want none", left)
	}
	read, err := store(t, a, id, size, whole)
	if err != nil || !bytes.Equal(read, whole) {
		t.Errorf("read %d bytes, %v, want %d", len(read), err, size)
	}
	stored, err := a.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Close()
	if b, err := io.ReadAll(stored); err != nil || !bytes.Equal(b, whole) {
		t.Errorf("read %d bytes of the stored blob (%v), want %d", len(b), err, size)
	}
	if left := uploads(t, dir); len(left) > 0 {
		t.Errorf("files of unfinished uploads: %q, want none", left)
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
			t.Fatalf("Link found the blob: %t, %v, want true", there, err)
		}
	}
	if b, err := r.Repository("two").read(t.Context(), d.Digest, 4); err != nil || string(b) != "blob" {
		t.Errorf("read %q, %v, want %q", b, err, "blob")
	}
	if _, err := r.Repository("two").read(t.Context(), d.Digest, 3); err == nil {
		t.Error("read a blob that is larger than the limit: got no error, want one")
	}
}

// An error of the storage is marked with ErrUnavailable, so that jobs that need the registry wait.
func TestErrorsOfTheStorageAreMarked(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(t.Context(), Dir(dir), nil, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	layer, config := put(t, r, "one", []byte("layer")), put(t, r, "one", []byte("{}"))
	// The storage fails: a file is where the directory of a repository has to be.
	if err := os.WriteFile(filepath.Join(dir, repositoriesPath, "two"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	two, m := r.Repository("two"), manifestOf(t, config, layer)
	for what, call := range map[string]func() error{
		"link": func() error { _, err := two.Link(t.Context(), layer.Digest.String()); return err },
		"put":  func() error { return two.PutManifest(t.Context(), "1", m) },
		"get":  func() error { _, err := two.Manifest(t.Context(), "1"); return err },
	} {
		if err := call(); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", what, err)
		}
	}
}

// A registry without repositories has no uploads, which is no error.
func TestEmptyRegistryHasNoUploads(t *testing.T) {
	if err := openTest(t).EndUploads(t.Context(), time.Hour); err != nil {
		t.Error(err)
	}
}

// Blobs are dropped together. If the right to delete them has ended, they stay.
func TestDrop(t *testing.T) {
	r := openTest(t)
	var blobs []string
	for _, content := range []string{"1", "2", "3"} {
		blobs = append(blobs, put(t, r, "a", []byte(content)).Digest.String())
	}
	stored := func() (n int) {
		t.Helper()
		if err := r.EachBlob(t.Context(), func(_ string, size int64) error { n += int(size); return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := r.Drop(ended, blobs...); !errors.Is(err, context.Canceled) || stored() != 3 {
		t.Errorf("dropped blobs without the right to: %v, and %d bytes are left, want 3", err, stored())
	}
	for range 2 { // it is no error that they are missing
		if err := r.Drop(t.Context(), blobs[:2]...); err != nil || stored() != 1 {
			t.Errorf("drop two of three blobs: %v, and %d bytes are left, want 1", err, stored())
		}
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
	calls     []string
	err       error
	disturbed int  // number of further changes that do not stay announced until they are complete
	unbounded bool // a call had no deadline
}

func (e *events) Changing(context.Context, string, string) (settled func() bool, err error) {
	return func() bool {
		e.calls = append(e.calls, "settled")
		e.disturbed--
		return e.disturbed < 0
	}, nil
}

func (e *events) Lock(string) (unlock func()) { return func() {} }

func (e *events) Allow(context.Context, string, string, Manifest) error { return nil }

func (e *events) Pushed(ctx context.Context, repository, tag string) error {
	_, bounded := ctx.Deadline()
	e.unbounded = e.unbounded || !bounded
	e.calls = append(e.calls, "pushed "+repository+" "+tag)
	return e.err
}

func (e *events) Deleted(ctx context.Context, repository, reference string) error {
	_, bounded := ctx.Deadline()
	e.unbounded = e.unbounded || !bounded
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
	want := "pushed a/b 1, settled, settled, deleted a/b " + m.Digest + ", settled, settled"
	if got := strings.Join(e.calls, ", "); got != want {
		t.Errorf("events received %q, want %q", got, want)
	}
	if e.unbounded {
		t.Error("a call of Events has no deadline, want one: others wait for the lock of the repository meanwhile")
	}
	// A push is made again if it did not stay announced until it was complete.
	e.calls, e.disturbed = nil, 2
	do("PUT", "/v2/a/b/manifests/1", http.StatusCreated)
	if got, once := strings.Join(e.calls, ", "), "pushed a/b 1, settled"; got != once+", "+once+", "+once {
		t.Errorf("events of a push that was disturbed twice: %q, want those of three pushes", got)
	}
	// A push that is refused is not made again: it would replace other changes once more.
	e.calls, e.disturbed = nil, 2
	do("PUT", "/v2/other/manifests/1", http.StatusBadRequest)
	if got := strings.Join(e.calls, ", "); got != "settled" {
		t.Errorf("events of a refused push that was disturbed: %q, want those of one push", got)
	}
	e.err, e.disturbed = errors.New("the disk is full"), 0
	do("PUT", "/v2/a/b/manifests/1", http.StatusServiceUnavailable)
}
