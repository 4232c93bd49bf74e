package push

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// maxPages bounds the requests for one list of referrers, and maxReferrers those of its entries
	// that have the type.
	maxPages     = 16
	maxReferrers = 1024
	// maxUntyped bounds the entries of a list under a tag that name no type.
	maxUntyped = 16
	// maxPage bounds a page, in bytes.
	maxPage = 4 << 20
	// listTime bounds the time for a list.
	listTime = 60 * time.Second
)

// errNoAPI says that a registry has no referrers API.
var errNoAPI = errors.New("the registry has no referrers API")

// Referrers lists the manifests of a type that refer to subject, as the registry has them, page by
// page, or, where it has no referrers API, the list under a tag (Tagged, OfTaggedType). client logs
// in. Nothing of the list is verified.
func Referrers(ctx context.Context, client *http.Client, in name.Repository, subject digest.Digest,
	artifactType string) (all []ocispec.Descriptor, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	at := &url.URL{Scheme: in.Scheme(), Host: in.RegistryStr(),
		Path:     "/v2/" + in.RepositoryStr() + "/referrers/" + subject.String(),
		RawQuery: url.Values{"artifactType": {artifactType}}.Encode()}
	all, err = pages(ctx, client, at, artifactType)
	if errors.Is(err, errNoAPI) {
		at.Path, at.RawQuery = "/v2/"+in.RepositoryStr()+"/manifests/"+ListTag(subject), ""
		all, err = tagged(ctx, client, at, subject, artifactType)
	}
	if err == nil && len(all) > maxReferrers {
		err = fmt.Errorf("it lists more than %d", maxReferrers)
	}
	if err != nil {
		return nil, fmt.Errorf("list what refers to %s in %s: %w", subject, in, err)
	}
	return all, nil
}

// OfType returns the entries of a list of referrers that have a type. header is that of the answer:
// where a registry says that it has filtered, its entries need not name their type.
func OfType(header http.Header, listed []ocispec.Descriptor, artifactType string) []ocispec.Descriptor {
	for _, value := range header.Values("OCI-Filters-Applied") {
		for one := range strings.SplitSeq(value, ",") {
			if strings.TrimSpace(one) == "artifactType" {
				return listed
			}
		}
	}
	return slices.DeleteFunc(listed, func(d ocispec.Descriptor) bool { return d.ArtifactType != artifactType })
}

// Tagged returns the list of what refers to subject, by the manifest under the tag of the list
// (ListTag), and the media type in the registry's answer, which may have parameters. A tool that
// copies one image of each index, as skopeo does without --all, leaves an artifact itself under the
// tag. Then isList is false, and the list has that artifact if it refers to subject.
func Tagged(mediaType string, b []byte, subject digest.Digest) (list ocispec.Index, isList bool, err error) {
	mediaType, _, _ = strings.Cut(mediaType, ";")
	switch mediaType {
	case ocispec.MediaTypeImageIndex:
		err = json.Unmarshal(b, &list)
		return list, true, err
	case ocispec.MediaTypeImageManifest:
	default:
		return list, false, fmt.Errorf("it has media type %q, want %s", mediaType, ocispec.MediaTypeImageIndex)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return list, false, err
	}
	list.SchemaVersion, list.MediaType = 2, ocispec.MediaTypeImageIndex
	if m.Subject != nil && m.Subject.Digest == subject {
		list.Manifests = []ocispec.Descriptor{{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b)),
			ArtifactType: cmp.Or(m.ArtifactType, m.Config.MediaType), Annotations: m.Annotations}}
	}
	return list, false, nil
}

// OfTaggedType returns the entries of a list under a tag that have a type, and after them some that
// name none: skopeo 1.9, for one, leaves the types out of a list that it copies.
func OfTaggedType(listed []ocispec.Descriptor, artifactType string) (all []ocispec.Descriptor) {
	var untyped []ocispec.Descriptor
	for _, d := range listed {
		switch {
		case d.ArtifactType == artifactType:
			all = append(all, d)
		case d.ArtifactType == "" && d.MediaType == ocispec.MediaTypeImageManifest && len(untyped) < maxUntyped:
			untyped = append(untyped, d)
		}
	}
	return append(all, untyped...)
}

// ListTag returns the tag under which clients keep the list of what refers to a manifest, where the
// registry does not: ALGORITHM-HEX, of which the digits are cut to 64.
func ListTag(subject digest.Digest) string {
	hex := subject.Encoded()
	return subject.Algorithm().String() + "-" + hex[:min(len(hex), 64)]
}

// pages requests all pages of a list from the referrers API.
func pages(ctx context.Context, client *http.Client, at *url.URL, artifactType string) (all []ocispec.Descriptor,
	err error) {
	for n := range maxPages {
		page, next, err := onePage(ctx, client, at, artifactType)
		failed := (*transport.Error)(nil)
		switch {
		case err == nil:
		case n == 0 && (errors.Is(err, errNoAPI) || errors.As(err, &failed) && lacksAPI(failed.StatusCode)):
			return nil, errNoAPI
		default:
			return nil, fmt.Errorf("page %d: %w", n+1, err)
		}
		if all = append(all, page...); next == nil || len(all) > maxReferrers {
			return all, nil
		}
		at = next
	}
	return nil, fmt.Errorf("the list has more than %d pages", maxPages)
}

// lacksAPI reports whether a status is that of registries without the referrers API.
func lacksAPI(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusNotImplemented:
		return true
	}
	return false
}

// onePage requests an index, and returns what has the type. next is nil after the last page.
func onePage(ctx context.Context, client *http.Client, at *url.URL, artifactType string) (page []ocispec.Descriptor,
	next *url.URL, err error) {
	header, kind, b, err := get(ctx, client, at, ocispec.MediaTypeImageIndex)
	if err != nil {
		return nil, nil, err
	}
	if kind != ocispec.MediaTypeImageIndex {
		return nil, nil, errNoAPI // a web page, for example
	}
	var index ocispec.Index
	if err = json.Unmarshal(b, &index); err == nil {
		next, err = NextPage(header, at)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the list: %w", err)
	}
	return OfType(header, index.Manifests, artifactType), next, nil
}

// tagged requests the list under a tag.
func tagged(ctx context.Context, client *http.Client, at *url.URL, subject digest.Digest, artifactType string) (
	[]ocispec.Descriptor, error) {
	_, kind, b, err := get(ctx, client, at, ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest)
	var failed *transport.Error
	if errors.As(err, &failed) && failed.StatusCode == http.StatusNotFound {
		return nil, nil // nothing refers to it yet
	}
	if err != nil {
		return nil, err
	}
	list, _, err := Tagged(kind, b, subject)
	if err != nil {
		return nil, fmt.Errorf("read the list: %w", err)
	}
	return OfTaggedType(list.Manifests, artifactType), nil
}

// get requests a manifest or a page of a list.
func get(ctx context.Context, client *http.Client, at *url.URL, accept ...string) (header http.Header,
	mediaType string, b []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, "", nil, err
	}
	req.Header.Set("Accept", strings.Join(accept, ", "))
	res, err := client.Do(req)
	if err != nil {
		return nil, "", nil, err
	}
	defer res.Body.Close()
	if err := transport.CheckError(res, http.StatusOK); err != nil {
		return nil, "", nil, err
	}
	mediaType, _, _ = strings.Cut(res.Header.Get("Content-Type"), ";")
	b, err = io.ReadAll(io.LimitReader(res.Body, maxPage+1))
	if err == nil && len(b) > maxPage {
		err = fmt.Errorf("read the list: it is longer than %d bytes", maxPage)
	}
	return res.Header, mediaType, b, err
}

// NextPage returns the URL of the page after an answer, by the answer's header Link (RFC 8288), or
// nil. at is the URL of the answer. The page has to be at the same host, because the login of the
// registry is sent there.
func NextPage(header http.Header, at *url.URL) (*url.URL, error) {
	link := nextLink.FindStringSubmatch(strings.Join(header.Values("Link"), ", "))
	if link == nil {
		return nil, nil
	}
	to, err := at.Parse(link[1])
	switch {
	case err != nil || link[1] == "" || to.Host == "" || to.Scheme != "http" && to.Scheme != "https":
		return nil, errors.New("its header Link has no URL of HTTP")
	case !strings.EqualFold(to.Host, at.Host):
		return nil, fmt.Errorf("its next page is at another host, %s", to.Host)
	}
	to.User, to.Fragment, to.RawFragment = nil, "", ""
	to.Scheme = at.Scheme // behind a proxy, some registries name the one that they are reached by
	return to, nil
}

// nextLink matches the URL of the next page in a header Link: <URL>; rel="next".
var nextLink = regexp.MustCompile(`(?i)<([^>]*)>[^<]*;\s*rel\s*=\s*"?next(?:["\s;,]|$)`)
