package push

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const wanted = "application/vnd.example.index"

// listed returns a list with a manifest for each artifact type.
func listed(t *testing.T, types ...string) string {
	t.Helper()
	var index ocispec.Index
	for i, one := range types {
		index.Manifests = append(index.Manifests, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest,
			Digest: digest.FromString(fmt.Sprint(one, i)), Size: int64(i + 1), ArtifactType: one})
	}
	b, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A list is read to its last page. Where there is no referrers API, the list under the tag counts.
func TestReferrers(t *testing.T) {
	subject := digest.FromString("image")
	first := "/v2/team/image/referrers/" + subject.String() + "?artifactType=application%2Fvnd.example.index"
	tag := "/v2/team/image/manifests/sha256-" + subject.Encoded()
	others := make([]string, maxReferrers+1)
	many := slices.Repeat([]string{wanted}, maxReferrers+1)
	for what, c := range map[string]struct {
		link, page, tagged string // of the first page, and the list under the tag; a page of "none" is no API
		want               int    // entries
		fails              string
	}{
		"one page":           {"", listed(t, wanted, "other", wanted), "", 2, ""},
		"a second page":      {`</v2/next?n=2>; rel="next"`, listed(t, wanted), "", 3, ""},
		"an absolute URL":    {`<URL/v2/next?n=2>; rel=next`, listed(t, "other"), "", 2, ""},
		"another link":       {`</v2/next?n=2>; rel="prev"`, listed(t, wanted), "", 1, ""},
		"another relation":   {`</v2/next?n=2>; rel="next-archive"`, listed(t, wanted), "", 1, ""},
		"no API":             {"", "none", listed(t, wanted, "other"), 1, ""},
		"no API, and no tag": {"", "none", "", 0, ""},
		"pages without end":  {`</v2/again>; rel="next"`, listed(t, wanted), "", 0, "more than 16 pages"},
		"another host":       {`<http://other.example/v2/next>; rel="next"`, listed(t, wanted), "", 0, "another host"},
		"a page is gone":     {`</v2/gone>; rel="next"`, listed(t, wanted), "", 0, "page 2"},
		"too many":           {"", listed(t, many...), "", 0, "more than 1024"},
		"many others":        {"", listed(t, append(others, wanted)...), "", 1, ""},
		"many under the tag": {"", "none", listed(t, append(others, wanted)...), 1 + maxUntyped, ""},
		"other under a tag":  {"", "none", listed(t, "other"), 0, ""},
		"no list at the tag": {"", "none", "{", 0, "read the list"},
		"no list":            {"", "{", "", 0, "read the list"},
	} {
		var server *httptest.Server
		server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			answer := func(link, body string) {
				if link != "" {
					w.Header().Set("Link", strings.Replace(link, "URL", server.URL, 1))
				}
				w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
				_, _ = w.Write([]byte(body))
			}
			switch uri := req.URL.RequestURI(); {
			case uri == first && c.page != "none":
				answer(c.link, c.page)
			case uri == "/v2/next?n=2":
				answer("", listed(t, wanted, "other", wanted))
			case uri == "/v2/again":
				answer(`</v2/again>; rel="next"`, listed(t, wanted))
			case uri == tag && c.tagged != "":
				answer("", c.tagged)
			default:
				http.NotFound(w, req)
			}
		}))
		in, err := name.NewRepository(strings.TrimPrefix(server.URL, "http://")+"/team/image", name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		all, err := Referrers(t.Context(), server.Client(), in, subject, wanted)
		if len(all) != c.want || (err == nil) != (c.fails == "") ||
			err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: got %d, %v; want %d, error %q", what, len(all), err, c.want, c.fails)
		}
		server.Close()
	}
}

// A registry that fails is no registry without an API.
func TestReferrersFail(t *testing.T) {
	for _, status := range []int{http.StatusForbidden, http.StatusInternalServerError} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
		}))
		in, err := name.NewRepository(strings.TrimPrefix(server.URL, "http://")+"/team/image", name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if all, err := Referrers(t.Context(), server.Client(), in, digest.FromString("x"), wanted); err == nil {
			t.Errorf("%d: got %v, want an error", status, all)
		}
		server.Close()
	}
}

// The tag of a longer digest is cut.
func TestListTag(t *testing.T) {
	long := digest.SHA512.FromString("image")
	if got, want := ListTag(long), "sha512-"+long.Encoded()[:64]; got != want {
		t.Errorf("the tag of a longer digest: %s, want %s", got, want)
	}
}

// What a tool has left under the tag of a list counts as one if it is an artifact of the subject.
func TestTagged(t *testing.T) {
	const list, image = ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest
	const config = "application/vnd.example.config"
	subject := digest.FromString("image")
	manifest := func(of digest.Digest, artifactType string) string {
		b, err := json.Marshal(ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifactType,
			Config:  ocispec.Descriptor{MediaType: config},
			Subject: &ocispec.Descriptor{Digest: of}, Annotations: map[string]string{"version": "2"}})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for what, c := range map[string]struct {
		mediaType, text string
		want            string // the types of what it lists
		isList, fails   bool
	}{
		"a list":              {list, listed(t, "a", "b"), "a b", true, false},
		"with a parameter":    {list + "; charset=utf-8", listed(t, "a", "b"), "a b", true, false},
		"an artifact":         {image, manifest(subject, wanted), wanted, false, false},
		"an older artifact":   {image, manifest(subject, ""), config, false, false},
		"another's artifact":  {image, manifest(digest.FromString("x"), wanted), "", false, false},
		"an image":            {image, "{}", "", false, false},
		"no manifest":         {image, "[]", "", false, true},
		"another kind":        {"application/vnd.docker.distribution.manifest.v2+json", "{}", "", false, true},
		"a list without JSON": {list, "", "", true, true},
	} {
		got, isList, err := Tagged(c.mediaType, []byte(c.text), subject)
		var types []string
		for _, d := range got.Manifests {
			types = append(types, d.ArtifactType)
			if !isList && (d.Digest != digest.FromString(c.text) || d.Size != int64(len(c.text)) ||
				d.MediaType != c.mediaType || d.Annotations["version"] != "2") {
				t.Errorf("%s: the descriptor %+v", what, d)
			}
		}
		if strings.Join(types, " ") != c.want || isList != c.isList || (err != nil) != c.fails {
			t.Errorf("%s: got %q, a list: %t, %v; want %+v", what, types, isList, err, c)
		}
	}
}

// Entries without a type come last, and only those of images.
func TestOfTaggedType(t *testing.T) {
	all := []ocispec.Descriptor{{MediaType: ocispec.MediaTypeImageManifest, Size: 2},
		{MediaType: ocispec.MediaTypeImageIndex}, {ArtifactType: "other"}, {ArtifactType: wanted, Size: 1}}
	if got := OfTaggedType(all, wanted); len(got) != 2 || got[0].Size != 1 || got[1].Size != 2 {
		t.Errorf("got %+v, want the one of the type, and the image without one", got)
	}
}

// A registry that says it has filtered is believed.
func TestOfType(t *testing.T) {
	for filters, want := range map[string]int{"": 1, "annotations": 1, "annotations, artifactType": 2} {
		all := []ocispec.Descriptor{{ArtifactType: wanted}, {}}
		if got := OfType(http.Header{"Oci-Filters-Applied": {filters}}, all, wanted); len(got) != want {
			t.Errorf("filters %q: got %d, want %d", filters, len(got), want)
		}
	}
}

// Whatever a registry sends as the header Link, the next page is at the same host.
func FuzzLink(f *testing.F) {
	f.Add(`</v2/a/next?n=1>; rel="next"`)
	f.Add(`<//other.example/x>; rel=next, <http://[::1]/>; REL = "next"`)
	f.Add(`<>; rel="next"`)
	at := &url.URL{Scheme: "https", Host: "r.example", Path: "/v2/a/referrers/x"}
	f.Fuzz(func(t *testing.T, link string) {
		next, err := NextPage(http.Header{"Link": {link}}, at)
		switch {
		case err != nil && next != nil:
			t.Errorf("%q: %v and %v", link, next, err)
		case next != nil && (next.Host != at.Host || next.User != nil || next.Scheme != at.Scheme):
			t.Errorf("%q leads to %s", link, next)
		}
	})
}
