package repository

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/registries/push"
)

const (
	// maxPages bounds the requests for one list of referrers, and maxReferrers those of its entries
	// that have the type.
	maxPages     = 16
	maxReferrers = 1024
)

// Referrers returns the manifests of one artifact type that refer to a manifest, in the registry's
// order. It asks the referrers API (OCI distribution specification 1.1), and where a registry has
// none, reads the index that clients keep under the tag sha256-HEX instead. The list is not
// verified: users who may push can change it. It is empty if the registry knows of no referrers.
func (r *Repository) Referrers(ctx context.Context, subject digest.Digest, artifactType string) (all []v1.Descriptor,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, smallTime)
	defer cancel()
	if err = subject.Validate(); err == nil {
		all, err = r.listed(ctx, subject, artifactType)
	}
	if err != nil {
		return nil, fmt.Errorf("list what refers to %s in %s: %w", subject, r, err)
	}
	return all, nil
}

// listed asks the API. Unless it is known that the registry has one, it reads the tag meanwhile,
// because the registry may be far away.
func (r *Repository) listed(ctx context.Context, subject digest.Digest, artifactType string) ([]v1.Descriptor, error) {
	if r.hasReferrers.Load() {
		return r.referrers(ctx, subject, artifactType)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop() // ends the goroutine
	type list struct {
		all []v1.Descriptor
		err error
	}
	tagged := make(chan list, 1)
	go func() {
		all, err := r.taggedReferrers(ctx, subject, artifactType)
		tagged <- list{all, err}
	}()
	all, err := r.referrers(ctx, subject, artifactType)
	if errors.Is(err, errNoAPI) {
		l := <-tagged
		return l.all, l.err
	}
	r.hasReferrers.Store(err == nil)
	return all, err
}

// errNoAPI says that a registry has no referrers API.
var errNoAPI = errors.New("the registry has no referrers API")

func (r *Repository) referrers(ctx context.Context, subject digest.Digest, artifactType string) (all []v1.Descriptor,
	err error) {
	next := r.url("referrers", subject.String())
	next.RawQuery = url.Values{"artifactType": {artifactType}}.Encode()
	for n := range maxPages {
		page, following, err := r.page(ctx, next, artifactType)
		if n > 0 && errors.Is(err, errNoAPI) {
			return nil, fmt.Errorf("GET %s: page %d of the list is missing", shown(next), n+1)
		}
		if err != nil {
			return nil, err
		}
		if all = append(all, page...); len(all) > maxReferrers {
			return nil, fmt.Errorf("it lists more than %d", maxReferrers)
		}
		if following == nil {
			return all, nil
		}
		next = following
	}
	return nil, fmt.Errorf("the list has more than %d pages", maxPages)
}

// page requests one page of referrers. following is nil after the last one.
func (r *Repository) page(ctx context.Context, at *url.URL, artifactType string) (page []v1.Descriptor,
	following *url.URL, err error) {
	a, err := r.send(ctx, http.MethodGet, at, http.Header{"Accept": {v1.MediaTypeImageIndex}})
	if err != nil {
		return nil, nil, err
	}
	defer a.Body.Close()
	return a.page(artifactType)
}

// page reads a page of referrers.
func (a *answer) page(artifactType string) (page []v1.Descriptor, following *url.URL, err error) {
	switch a.StatusCode {
	case http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusNotImplemented:
		return nil, nil, errNoAPI
	case http.StatusOK:
		if a.mediaType() != v1.MediaTypeImageIndex { // a web page, for example
			return nil, nil, errNoAPI
		}
	default:
		return nil, nil, a.statusError()
	}
	b, err := a.readSmall()
	if err != nil {
		return nil, nil, err
	}
	index, err := a.parseIndex(b)
	if err != nil {
		return nil, nil, err
	}
	index = push.OfType(a.Header, index, artifactType)
	if following, err = push.NextPage(a.Header, a.url); err != nil {
		return nil, nil, a.invalid(err)
	}
	return index, following, nil
}

// taggedReferrers reads the index under the tag that takes the place of the referrers API.
func (r *Repository) taggedReferrers(ctx context.Context, subject digest.Digest, artifactType string) ([]v1.Descriptor,
	error) {
	a, err := r.send(ctx, http.MethodGet, r.url("manifests", push.ListTag(subject)), manifestHeader())
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	return a.tagged(subject, artifactType)
}

// tagged reads the index under that tag.
func (a *answer) tagged(subject digest.Digest, artifactType string) ([]v1.Descriptor, error) {
	if err := a.mustBe(http.StatusOK); errors.Is(err, chunk.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	b, err := a.readSmall()
	if err != nil {
		return nil, err
	}
	list, _, err := push.Tagged(a.mediaType(), b, subject)
	if err == nil {
		err = checkAll(list.Manifests)
	}
	// No header says that this list was filtered: the registry does not know what the index is.
	all := push.OfTaggedType(list.Manifests, artifactType)
	if err == nil && len(all) > maxReferrers {
		err = fmt.Errorf("it lists more than %d", maxReferrers)
	}
	if err != nil {
		return nil, a.invalid(err)
	}
	return all, nil
}

func (a *answer) parseIndex(b []byte) ([]v1.Descriptor, error) {
	var index v1.Index
	err := json.Unmarshal(b, &index)
	if err == nil {
		err = checkAll(index.Manifests)
	}
	if err != nil {
		return nil, a.invalid(err)
	}
	return index.Manifests, nil
}

func checkAll(listed []v1.Descriptor) error {
	for _, d := range listed {
		if err := checkBlob(d); err != nil {
			return err
		}
	}
	return nil
}
