package repository

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/store"
)

var epoch time.Time

// Ranges are those that were asked for. The registry is asked once for where a blob is, and the
// connections are used again. The place where the blob is gets no credentials.
func TestRange(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := f.open(t)
	size := int64(len(f.blob))
	reused := 0
	for _, c := range [][2]int64{{0, 1}, {1000, 70_000}, {size - 1, 1}, {0, size}} {
		var got []byte
		err := r.Range(t.Context(), f.d, c[0], c[1], func(a store.Answer) (err error) {
			if a.Length != c[1] || a.Origin != f.host || a.RoundTrip <= 0 {
				t.Errorf("range %v: answer of %d bytes by %s after %s", c, a.Length, a.Origin, a.RoundTrip)
			}
			if a.Reused {
				reused++
			}
			got, err = io.ReadAll(a.Body)
			return err
		})
		if err != nil || !bytes.Equal(got, f.blob[c[0]:c[0]+c[1]]) {
			t.Errorf("range %v: got %d bytes, %v", c, len(got), err)
		}
	}
	if asked, given := f.counts(); asked != 1 || given != 4 || reused != 3 {
		t.Errorf("%d requests to the registry, %d to the target, %d connections used again: want 1, 4 and 3", asked,
			given, reused)
	}
	if len(f.leaked) > 0 {
		t.Errorf("the target got credentials: %q", f.leaked)
	}
	for _, c := range [][2]int64{{0, 0}, {-1, 2}, {size, 1}, {1, size}, {1, 1<<63 - 1}} {
		if _, err := rangeOf(t, r, f.d, c[0], c[1]); err == nil || !strings.Contains(err.Error(), "has 300000 bytes") {
			t.Errorf("range %v: error %v, want one with the size", c, err)
		}
	}
	r.targets.byBlob.Add(f.d.Digest, place{r.targets.get(f.d.Digest), time.Now().Add(-time.Second)})
	if _, err := rangeOf(t, r, f.d, 0, 1); err != nil {
		t.Error(err)
	}
	if asked, _ := f.counts(); asked != 1 {
		t.Errorf("after the target was forgotten: %d requests to the registry, want 1", asked)
	}
}

// If the target of a redirect refuses, the registry is asked again, once. The error names the URL
// without its signature.
func TestExpiredRedirect(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden} {
		f := startFake(t)
		r := f.open(t)
		isNever := atomic.Bool{}
		f.with(func() {
			f.give = func(w http.ResponseWriter, req *http.Request) {
				f.mu.Lock()
				want := fmt.Sprintf("s1gned-%d", f.signature)
				f.mu.Unlock()
				if isNever.Load() || req.FormValue("signature") != want {
					w.WriteHeader(status)
					return
				}
				f.serveBlob(w, req)
			}
		})
		read := func(wantAsked, wantGiven int) error {
			t.Helper()
			_, err := rangeOf(t, r, f.d, 5, 10)
			if asked, given := f.counts(); asked != wantAsked || given != wantGiven {
				t.Errorf("%d: %d requests to the registry and %d to the target, want %d and %d", status, asked, given,
					wantAsked, wantGiven)
			}
			return err
		}
		if err := read(1, 1); err != nil {
			t.Error(err)
		}
		f.with(func() { f.signature++ })
		if err := read(1, 2); err != nil {
			t.Errorf("%d: after the URL has expired: %v", status, err)
		}
		if err := read(0, 1); err != nil {
			t.Errorf("%d: the new URL: %v", status, err)
		}
		isNever.Store(true)
		r.targets.forget(f.d.Digest)
		err := read(2, 2)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s/stored: %d", f.stores.URL, status)) ||
			!strings.Contains(err.Error(), "bytes 5-14") || strings.Contains(err.Error(), "s1gned") {
			t.Errorf("%d: always: error %v, want one with URL and range, and without the signature", status, err)
		}
		if errors.Is(err, ErrDenied) || errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("%d: error %v is the registry's answer", status, err)
		}
		if len(f.leaked) > 0 {
			t.Errorf("%d: the target got credentials: %q", status, f.leaked)
		}
	}
}

// Redirects that lead nowhere are errors without what they hold.
func TestWrongRedirects(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := f.open(t)
	for location, want := range map[string]string{
		"ftp://127.0.0.1/s1gned": "no URL of HTTP", "http://%zz/s1gned": "no URL of HTTP", "": "no URL of HTTP",
		"?s1gned": "redirects", "http://10.0.0.1/x?s1gned": "plain HTTP", "https://10.0.0.1/x?s1gned": "public address",
	} {
		f.with(func() {
			f.answer = func(w http.ResponseWriter, req *http.Request) bool {
				w.Header().Set("Location", location)
				w.WriteHeader(http.StatusFound)
				return true
			}
		})
		_, err := rangeOf(t, r, f.d, 0, 1)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s1gned") {
			t.Errorf("Location %q: error %v, want one about %q", location, err, want)
		}
	}
	if asked, _ := f.counts(); asked != 5+maxRedirects+1 {
		t.Errorf("%d requests, want %d", asked, 5+maxRedirects+1)
	}
}

// A server that ignores ranges is said to do so. The blob can then be read as a whole.
func TestNoRanges(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	f.give = func(w http.ResponseWriter, req *http.Request) { _, _ = w.Write(f.blob) }
	r := f.open(t)
	for range 2 {
		_, err := rangeOf(t, r, f.d, 1, 10)
		if !errors.Is(err, ErrNoRanges) || errors.As(err, new(*chunk.InvalidError)) {
			t.Errorf("error %v, want %v", err, ErrNoRanges)
		}
	}
	if b, err := rangeOf(t, r, f.d, 0, f.d.Size); err != nil || !bytes.Equal(b, f.blob) {
		t.Errorf("the range of the whole blob: %d bytes, %v", len(b), err)
	}
	if b, err := r.Blob(t.Context(), f.d, f.d.Size); err != nil || !bytes.Equal(b, f.blob) {
		t.Errorf("the whole blob: %d bytes, %v", len(b), err)
	}
	if _, err := r.Blob(t.Context(), f.d, f.d.Size-1); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a blob above the limit: error %v", err)
	}
}

// send answers with a status, and a body that is sent as chunks if its length is not told.
func send(status int, header map[string]string, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		for key, value := range header {
			w.Header().Set(key, value)
		}
		w.WriteHeader(status)
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, body)
	}
}

// Answers that are not the range are wrong answers. The error names URL, range and cause.
func TestWrongAnswers(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := f.open(t)
	right := map[string]string{"Content-Range": "bytes 10-19/300000"}
	at := func(s string) map[string]string { return map[string]string{"Content-Range": s} }
	for _, c := range []struct {
		want string
		give func(http.ResponseWriter, *http.Request)
	}{
		{`Content-Range "bytes 0-9/300000"`, send(206, at("bytes 0-9/300000"), "0123456789")},
		{`Content-Range "bytes 10-18/300000"`, send(206, at("bytes 10-18/300000"), "012345678")},
		{`Content-Range "bytes 10-19/300001"`, send(206, at("bytes 10-19/300001"), "0123456789")},
		{`Content-Range "bytes 10-19/*"`, send(206, at("bytes 10-19/*"), "0123456789")},
		{`Content-Range ""`, send(206, nil, "0123456789")},
		{"416", send(416, at("bytes */5"), "")},
		{"longer", send(206, right, "0123456789+")},
		{"1 bytes are missing", send(206, right, "012345678")},
		{"it has 9 bytes, want 10", send(206, map[string]string{"Content-Range": right["Content-Range"],
			"Content-Length": "9"}, "012345678")},
		{"Content-Encoding", send(206, map[string]string{"Content-Range": right["Content-Range"],
			"Content-Encoding": "gzip"}, "0123456789")},
		{"status 203", send(203, right, "0123456789")},
	} {
		f.with(func() { f.give = c.give })
		_, err := rangeOf(t, r, f.d, 10, 10)
		if asked, given := f.counts(); asked != 1 || given != 1 {
			t.Errorf("%s: %d and %d requests, want 1 of each", c.want, asked, given)
		}
		if !errors.As(err, new(*chunk.InvalidError)) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), f.stores.URL+"/stored") || !strings.Contains(err.Error(), "bytes 10-19") ||
			strings.Contains(err.Error(), "s1gned") {
			t.Errorf("error %v, want one with URL and range about %s", err, c.want)
		}
	}
	f.with(func() { f.give = send(206, right, "0123456789") })
	if b, err := rangeOf(t, r, f.d, 10, 10); err != nil || string(b) != "0123456789" {
		t.Errorf("a right answer: %q, %v", b, err)
	}
}
