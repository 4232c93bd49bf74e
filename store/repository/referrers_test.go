package repository

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
)

// Whatever a registry answers as a list of referrers, or under the tag of such a list, each entry
// is a manifest of the type, or of none where the registry may leave it out. The next page is in
// the same registry.
func FuzzReferrers(f *testing.F) {
	const artifactType = "application/vnd.example.index"
	subject := digest.FromString("image")
	one := v1.Descriptor{MediaType: v1.MediaTypeImageManifest, ArtifactType: artifactType,
		Digest: digest.FromString("one"), Size: 3}
	untyped, other, wrong, short := one, one, one, one
	untyped.ArtifactType, other.ArtifactType, wrong.Digest, short.Size = "", "other", "sha256:../../etc", -1
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	list := func(listed ...v1.Descriptor) []byte { return encode(v1.Index{Manifests: listed}) }
	artifact := v1.Manifest{ArtifactType: artifactType, Subject: &v1.Descriptor{Digest: subject}}
	const next = `</v2/team/image/next>; rel="next"`
	f.Add(http.StatusOK, v1.MediaTypeImageIndex, "", "", list(one, untyped, other))
	f.Add(http.StatusOK, v1.MediaTypeImageIndex+"; charset=utf-8", "artifactType", next, list(untyped))
	f.Add(http.StatusOK, v1.MediaTypeImageIndex, "", `<//other.example/x>; rel=next`, list(one))
	f.Add(http.StatusOK, v1.MediaTypeImageIndex, "", "", list(one, wrong))
	f.Add(http.StatusOK, v1.MediaTypeImageIndex, "", "", list(short))
	f.Add(http.StatusOK, v1.MediaTypeImageManifest, "", "", encode(artifact))
	f.Add(http.StatusOK, "text/html", "", "", []byte("<html>"))
	f.Add(http.StatusOK, v1.MediaTypeImageIndex, "", "", []byte(`{"manifests": [null, {"digest": null}]}`))
	f.Add(http.StatusNotFound, "application/json", "", "", []byte(`{"errors": []}`))
	f.Fuzz(func(t *testing.T, status int, mediaType, filters, link string, body []byte) {
		at := &url.URL{Scheme: "https", Host: "r.example", Path: "/v2/team/image/referrers/x"}
		header := http.Header{"Content-Type": {mediaType}, "Oci-Filters-Applied": {filters}, "Link": {link}}
		answered := func() *answer {
			return &answer{Response: &http.Response{StatusCode: status, Header: header,
				Body: io.NopCloser(bytes.NewReader(body))}, method: http.MethodGet, url: at}
		}
		check := func(all []v1.Descriptor, err error, mayLack bool) {
			t.Helper()
			if err != nil && len(all) > 0 || err == nil && len(all) > 0 && status != http.StatusOK {
				t.Errorf("status %d: %d entries, %v", status, len(all), err)
			}
			if status == http.StatusOK && err != nil && !errors.Is(err, errNoAPI) &&
				!errors.As(err, new(*chunk.InvalidError)) {
				t.Errorf("got %v, want an InvalidError", err)
			}
			for _, d := range all {
				lacks := mayLack && d.ArtifactType == "" && d.MediaType == v1.MediaTypeImageManifest
				if d.Digest.Validate() != nil || d.Size < 0 || d.ArtifactType != artifactType && !lacks {
					t.Errorf("entry %+v", d)
				}
			}
		}
		all, following, err := answered().page(artifactType)
		for i := range all {
			if strings.Contains(filters, "artifactType") {
				all[i].ArtifactType = artifactType // the registry says so
			}
		}
		check(all, err, false)
		if following != nil && (err != nil || following.Host != at.Host || following.Scheme != at.Scheme ||
			following.User != nil) {
			t.Errorf("the next page is at %s, %v", following, err)
		}
		all, err = answered().tagged(subject, artifactType)
		check(all, err, true)
		if len(all) > maxReferrers {
			t.Errorf("%d entries", len(all))
		}
	})
}
