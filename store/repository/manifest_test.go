package repository

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/registries"
)

const artifactType = "application/vnd.example.index"

// answers makes the fake answer with texts by path and query, and 404 to everything else.
func (f *fake) answers(mediaType string, byPath map[string]string) {
	f.with(func() {
		f.answer = func(w http.ResponseWriter, req *http.Request) bool {
			text, ok := byPath[strings.TrimPrefix(req.URL.RequestURI(), "/v2"+team)]
			if !ok {
				return false
			}
			w.Header().Set("Content-Type", mediaType)
			_, _ = w.Write([]byte(text))
			return true
		}
	})
}

// A manifest is read by tag or digest. One with another digest, or of any length, is refused.
func TestManifest(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := f.open(t)
	id := digest.FromString("{}")
	other := digest.FromString("other")
	f.answers(v1.MediaTypeImageManifest+"; charset=utf-8", map[string]string{"/manifests/1": "{}",
		"/manifests/" + id.String(): "{}", "/manifests/" + other.String(): "{}",
		"/manifests/large": strings.Repeat(" ", maxManifest+1), "/manifests/full": strings.Repeat(" ", maxManifest)})
	for _, which := range []string{"1", id.String()} {
		m, err := r.Manifest(t.Context(), which)
		if err != nil || m.MediaType != v1.MediaTypeImageManifest || m.Digest != id || string(m.Bytes) != "{}" {
			t.Errorf("manifest %s: %v, %v", which, m, err)
		}
	}
	if m, err := r.Manifest(t.Context(), "full"); err != nil || len(m.Bytes) != maxManifest {
		t.Errorf("a manifest of the greatest size: %v", err)
	}
	for which, want := range map[string]error{other.String(): nil, "large": nil, "none": chunk.ErrNotFound,
		"sha256:x": digest.ErrDigestInvalidLength} {
		_, err := r.Manifest(t.Context(), which)
		isRight := errors.Is(err, want)
		if want == nil {
			isRight = errors.As(err, new(*chunk.InvalidError))
		}
		if !isRight || !strings.Contains(err.Error(), "read manifest "+which) {
			t.Errorf("manifest %s: error %v, want %v", which, err, want)
		}
	}
}

// Only a registry that names or sends the manifest allows the pull.
func TestCheck(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := f.open(t)
	id := digest.FromString("{}")
	named := func(name string, status int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, req *http.Request) bool {
			if name != "" {
				w.Header().Set("Docker-Content-Digest", name)
			}
			if status == http.StatusMethodNotAllowed && req.Method == http.MethodGet {
				status = http.StatusOK
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
			return true
		}
	}
	for _, c := range []struct {
		what   string
		answer func(http.ResponseWriter, *http.Request) bool
		want   error
	}{
		{"named", named(id.String(), 200, ""), nil},
		{"sent", named("", 200, "{}"), nil},
		{"sent to GET only", named("", 405, "{}"), nil},
		{"missing", named("", 404, "{}"), chunk.ErrNotFound},
		{"forbidden", named(id.String(), 403, ""), ErrDenied},
		{"still 401", named(id.String(), 401, ""), ErrDenied},
	} {
		f.with(func() { f.answer = c.answer })
		if err := r.Check(t.Context(), id); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", c.what, err, c.want)
		}
	}
	f.with(func() { f.answer = named("", 200, "<html>log in</html>") })
	if err := r.Check(t.Context(), id); !errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("a login page: error %v, want an InvalidError", err)
	}
	f.with(func() {
		f.answer = func(w http.ResponseWriter, req *http.Request) bool {
			http.Redirect(w, req, f.stores.URL+"/login", http.StatusFound)
			return true
		}
	})
	if err := r.Check(t.Context(), id); !errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("a redirect to a login page: error %v, want an InvalidError", err)
	}
	f.with(func() { // its URL is signed for GET
		f.give = func(w http.ResponseWriter, req *http.Request) {
			if req.Method != http.MethodGet {
				w.WriteHeader(http.StatusForbidden)
			}
			_, _ = w.Write([]byte("{}"))
		}
	})
	if err := r.Check(t.Context(), id); err != nil {
		t.Errorf("a redirect to the manifest: %v", err)
	}
	if err := openAt(t, f.host, registries.Registry{}).Check(t.Context(), id); !errors.Is(err, ErrDenied) {
		t.Errorf("without a login: error %v, want %v", err, ErrDenied)
	}
}

// listed returns an index of descriptors with these types, and sizes from first on.
func listed(t *testing.T, first int64, types ...string) string {
	t.Helper()
	index := v1.Index{MediaType: v1.MediaTypeImageIndex}
	for _, one := range types {
		index.Manifests = append(index.Manifests, v1.Descriptor{MediaType: v1.MediaTypeImageManifest,
			Digest: digest.FromString(one), Size: first, ArtifactType: one})
		first++
	}
	b, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sizes returns the sizes of descriptors.
func sizes(all []v1.Descriptor) (text string) {
	for _, d := range all {
		text += fmt.Sprint(d.Size, " ")
	}
	return strings.TrimSpace(text)
}

// Referrers are read to the last page. Those of other types are left out, unless the registry says
// that it has done that.
func TestReferrers(t *testing.T) {
	t.Parallel()
	subject := digest.FromString("image")
	first := "/v2" + team + "/referrers/" + subject.String() + "?artifactType=application%2Fvnd.example.index"
	for _, c := range []struct {
		what, filters, link, want string
	}{
		{"unfiltered", "", "", "1"},
		{"filtered", "artifactType", "", "1 2"},
		{"filtered by several", "x, artifactType", "", "1 2"},
		{"relative page", "", `</v2` + team + `/next?a=1,2>; rel="next"`, "1 11"},
		{"absolute page", "", `<URL/v2` + team + `/next?a=1,2>;rel=next`, "1 11"},
		{"several links", "", `</v2/x>; rel="prev", </v2` + team + `/next?a=1,2>; title=x; rel="next"`, "1 11"},
		{"no next", "", `</v2/x>; rel="prev"`, "1"},
	} {
		f := startFake(t)
		f.answer = func(w http.ResponseWriter, req *http.Request) bool {
			w.Header().Set("Content-Type", v1.MediaTypeImageIndex)
			if req.URL.RequestURI() == "/v2"+team+"/next?a=1,2" {
				_, _ = w.Write([]byte(listed(t, 11, artifactType, "other")))
				return true
			}
			if req.URL.RequestURI() != first {
				return false
			}
			if c.filters != "" {
				w.Header().Set("OCI-Filters-Applied", c.filters)
			}
			if c.link != "" {
				w.Header().Set("Link", strings.Replace(c.link, "URL", f.URL, 1))
			}
			_, _ = w.Write([]byte(listed(t, 1, artifactType, "")))
			return true
		}
		got, err := f.open(t).Referrers(t.Context(), subject, artifactType)
		if err != nil || sizes(got) != c.want {
			t.Errorf("%s: got those of sizes %s, %v, want %s", c.what, sizes(got), err, c.want)
		}
	}
}

// Where a registry has no referrers API, the index under the tag is read.
func TestFallbackTag(t *testing.T) {
	t.Parallel()
	subject := digest.FromString("image")
	f := startFake(t)
	r := f.open(t)
	none := 0
	tagged := map[string]string{}
	kind := v1.MediaTypeImageIndex
	f.answer = func(w http.ResponseWriter, req *http.Request) bool {
		if strings.Contains(req.URL.Path, "/referrers/") {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(none)
			return true
		}
		text, ok := tagged[strings.TrimPrefix(req.URL.Path, "/v2"+team+"/manifests/")]
		if ok {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write([]byte(text))
		}
		return ok
	}
	for _, none = range []int{404, 400, 405, 406, 501, 200} {
		clear(tagged)
		if got, err := r.Referrers(t.Context(), subject, artifactType); err != nil || len(got) > 0 {
			t.Errorf("%d: without the tag: %v, %v, want none", none, got, err)
		}
		tagged["sha256-"+subject.Encoded()] = listed(t, 1, artifactType, "other")
		if got, err := r.Referrers(t.Context(), subject, artifactType); err != nil || sizes(got) != "1" {
			t.Errorf("%d: got %v, %v, want the one of the type", none, got, err)
		}
	}
	kind = v1.MediaTypeImageManifest
	if got, err := r.Referrers(t.Context(), subject, artifactType); err != nil || len(got) > 0 {
		t.Errorf("a tag of an image: %v, %v, want none", got, err)
	}
	artifact := `{"artifactType": "` + artifactType + `", "subject": {"digest": "` + subject.String() + `"}}`
	tagged["sha256-"+subject.Encoded()] = artifact
	got, err := r.Referrers(t.Context(), subject, artifactType)
	if err != nil || len(got) != 1 || got[0].Digest != digest.FromString(artifact) {
		t.Errorf("a tag of an artifact: %v, %v, want that one", got, err)
	}
	kind = "application/vnd.docker.distribution.manifest.v2+json"
	if _, err := r.Referrers(t.Context(), subject, artifactType); !errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("a tag of something else: error %v, want an InvalidError", err)
	}
	none = 500
	if _, err := r.Referrers(t.Context(), subject, artifactType); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("a failing registry: error %v, want its status", err)
	}
	none = 403
	if _, err := r.Referrers(t.Context(), subject, artifactType); !errors.Is(err, ErrDenied) {
		t.Errorf("a refusal: error %v, want %v", err, ErrDenied)
	}
}

// A list under a tag may have any number of other types.
func TestManyOtherReferrers(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	f.with(func() {
		f.answer = func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.Contains(req.URL.Path, "/manifests/sha256-") {
				return false
			}
			w.Header().Set("Content-Type", v1.MediaTypeImageIndex)
			_, _ = w.Write([]byte(listed(t, 1, append(make([]string, maxReferrers+1), artifactType)...)))
			return true
		}
	})
	all, err := f.open(t).Referrers(t.Context(), digest.FromString("image"), artifactType)
	if err != nil || len(all) == 0 || len(all) > 32 || all[0].ArtifactType != artifactType {
		t.Errorf("got %d referrers, %v; want the one, and some of those without a type", len(all), err)
	}
}

// Lists without an end, at another host, or with other things than descriptors are refused.
func TestWrongReferrers(t *testing.T) {
	t.Parallel()
	subject := digest.FromString("image")
	f := startFake(t)
	r := f.open(t)
	many := make([]string, maxReferrers+1)
	for i := range many {
		many[i] = artifactType
	}
	for _, c := range []struct{ link, body, want string }{
		{`</v2/again>; rel="next"`, listed(t, 1, artifactType), "pages"},
		{`<` + f.stores.URL + `/x>; rel="next"`, listed(t, 1), "another host"},
		{`<ftp://x/y>; rel="next"`, listed(t, 1), "no URL"},
		{`</gone>; rel="next"`, listed(t, 1), "page 2"},
		{"", listed(t, 1, many...), "more than"},
		{"", `{"manifests": [{"digest": "sha256:1", "size": 1}]}`, "descriptor"},
		{"", `{"manifests": [{"digest": "` + subject.String() + `", "size": -1}]}`, "its size"},
		{"", `{"manifests": 5}`, "unmarshal"},
		{"", string(bytes.Repeat([]byte(" "), maxManifest+1)), "limit"},
	} {
		f.with(func() {
			f.answer = func(w http.ResponseWriter, req *http.Request) bool {
				if req.URL.Path == "/gone" {
					return false
				}
				w.Header().Set("Content-Type", v1.MediaTypeImageIndex)
				w.Header().Set("Link", c.link)
				_, _ = w.Write([]byte(c.body))
				return true
			}
		})
		_, err := r.Referrers(t.Context(), subject, artifactType)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one about %q", err, c.want)
		}
	}
	// The tag is asked for, too, unless the request is ended before it is sent.
	if asked, given := f.counts(); asked < maxPages+9 || asked > maxPages+18 || given != 0 {
		t.Errorf("%d and %d requests, want %d to %d and 0", asked, given, maxPages+9, maxPages+18)
	}
}

// The list that takes the place of the referrers API is read only from registries that are not
// known to have the API.
func TestReferrersAreAskedForOnce(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := f.open(t)
	for n, hasAPI := range []bool{false, true, true} {
		subject := digest.FromString(fmt.Sprint("image ", n)) // a request for the one before may still come
		var mu sync.Mutex
		tags := 0
		f.with(func() {
			f.answer = func(w http.ResponseWriter, req *http.Request) bool {
				if strings.Contains(req.URL.Path, "/manifests/sha256-"+subject.Encoded()) {
					mu.Lock()
					tags++
					mu.Unlock()
					return false
				}
				if hasAPI {
					w.Header().Set("Content-Type", v1.MediaTypeImageIndex)
					_, _ = w.Write([]byte(listed(t, 1, artifactType)))
				}
				return hasAPI
			}
		})
		knew := r.hasReferrers.Load()
		if all, err := r.Referrers(t.Context(), subject, artifactType); err != nil || hasAPI != (len(all) == 1) {
			t.Errorf("API %t: got %v, error %v", hasAPI, all, err)
		}
		mu.Lock()
		if tags > 1 || knew && tags > 0 || !hasAPI && tags == 0 {
			t.Errorf("API %t, known before: %t: the list was read %d times", hasAPI, knew, tags)
		}
		mu.Unlock()
	}
	if !r.hasReferrers.Load() {
		t.Error("the registry is not known to have the API")
	}
}
