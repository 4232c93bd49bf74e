package space

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"lighter/hub/jobs"
)

const huge = 1 << 60

func reserve(t *testing.T, bytes int64) *Reserve { return New(bytes, Dir{"objects", t.TempDir()}) }

// disk is a disk with a changing number of free bytes.
type disk struct{ atomic.Int64 }

// reserve returns a reserve of 8 bytes of the disk, which has 10 free bytes.
func (d *disk) reserve() *Reserve {
	d.Store(10)
	return &Reserve{8, []Dir{{"objects", "/objects"}}, func(Dir) (int64, error) { return d.Load(), nil }}
}

// If a disk has less free bytes than the reserve, the error names the disk, and says what to do.
func TestCheck(t *testing.T) {
	for _, bytes := range []int64{0, 1} {
		if err := reserve(t, bytes).Check(); err != nil {
			t.Errorf("a reserve of %d bytes: %v, want no error", bytes, err)
		}
	}
	low := (*LowError)(nil)
	if err := reserve(t, huge).Check(); !errors.As(err, &low) || low.Free <= 0 ||
		!strings.Contains(err.Error(), "objects") || !strings.Contains(err.Error(), "remove images") ||
		!strings.Contains(err.Error(), "1.0 EiB") {
		t.Errorf("a reserve larger than the disk: %v, want a LowError that names objects", err)
	}
	r := New(1, Dir{"objects", "/does/not/exist"})
	if err := r.Check(); err == nil || errors.As(err, &low) {
		t.Errorf("a directory that does not exist: %v, want an error other than a LowError", err)
	}
}

// A job does not begin without room. It is stopped when the room is used up.
func TestJob(t *testing.T) {
	d, ran := new(disk), 0
	run := d.reserve().Job(func(ctx context.Context, _ *jobs.Running) error {
		if ran++; ran == 1 {
			return nil
		}
		d.Store(7)
		<-ctx.Done()
		return ctx.Err()
	})
	retry, low := (*jobs.RetryError)(nil), (*LowError)(nil)
	d.Store(9) // more than the reserve, but the job would soon be stopped
	if err := run(t.Context(), nil); !errors.As(err, &retry) || !errors.As(err, &low) || retry.After != pause ||
		ran != 0 {
		t.Errorf("without room: %v, ran %d times, want a RetryError", err, ran)
	}
	d.Store(10)
	if err := run(t.Context(), nil); err != nil || ran != 1 {
		t.Errorf("with room: %v, ran %d times, want once", err, ran)
	}
	if err := run(t.Context(), nil); !errors.As(err, &retry) || !errors.As(err, &low) || retry.After != stoppedPause {
		t.Errorf("when the room is used up: %v, want a RetryError", err)
	}
}

// Uploads need room. Other requests are passed in any case.
func TestUploads(t *testing.T) {
	d := new(disk)
	r := d.reserve()
	d.Store(7)
	var read error
	h := r.Uploads(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, read = io.Copy(io.Discard, req.Body)
		w.WriteHeader(http.StatusNoContent)
	}))
	do := func(method, path string, body []byte) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, bytes.NewReader(body)))
		return w
	}
	for request, want := range map[string]int{
		"POST /v2/a/b/blobs/uploads/": 507, "PATCH /v2/a/blobs/uploads/x": 507, "PUT /v2/a/blobs/uploads/x": 507,
		"GET /v2/a/blobs/uploads/x": 204, "DELETE /v2/a/blobs/uploads/x": 204, "PUT /v2/a/manifests/1": 204,
		"GET /v2/a/blobs/sha256:0": 204,
	} {
		method, path, _ := strings.Cut(request, " ")
		w := do(method, path, nil)
		if w.Code != want || want == 507 && !strings.Contains(w.Body.String(), `"code":"DENIED"`) {
			t.Errorf("%s: %d %s, want %d", request, w.Code, w.Body, want)
		}
	}
	d.Store(8)
	if w := do("PATCH", "/v2/a/blobs/uploads/x", make([]byte, 2*checkBytes)); w.Code != 204 || read != nil {
		t.Errorf("with room: %d, %v, want 204", w.Code, read)
	}
	h = r.Uploads(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		d.Store(7)
		_, read = io.Copy(io.Discard, req.Body)
	}))
	if do("PATCH", "/v2/a/blobs/uploads/x", make([]byte, 2*checkBytes)); !errors.As(read, new(*LowError)) {
		t.Errorf("when the room is used up in an upload: %v, want a LowError", read)
	}
}
