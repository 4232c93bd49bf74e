package pullthrough

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/oci"
	"lighter/hub/pull"
	"lighter/hub/registry"
)

const (
	// maxNames bounds the tags that are remembered, of some 300 bytes each, and the manifests of
	// which it is known which tag or index has them.
	maxNames = 16_384
	// staleAfter is how long a client waits for a registry before it gets the tag's last manifest.
	staleAfter = 3 * time.Second
	// maxManifests and maxManifestBytes bound the manifests that are kept in memory. The least
	// recently used is forgotten first.
	maxManifests     = 16_384
	maxManifestBytes = 64 << 20
)

// tag is what a tag stood for when its registry was last asked.
type tag struct {
	v1.Descriptor
	asked time.Time
}

// parent is the index that has a manifest.
type parent struct{ index, platform string }

// isTag reports whether a reference of a manifest is a tag.
func isTag(which string) bool { return !strings.Contains(which, ":") }

var errAccept = errors.New("the client accepts no manifest of this type")

// serveManifest answers with a manifest, by tag or by digest.
func (s *Service) serveManifest(w http.ResponseWriter, rd *reader, domain *Domain) error {
	ctx, id, result := rd.Context(), rd.which, cached
	var now tag
	var err error
	if isTag(rd.which) {
		if now, result, err = s.resolve(ctx, rd); err != nil {
			return err
		}
		id = now.Digest.String()
		if !accepts(rd.Header, now.MediaType) {
			return fmt.Errorf("%w: %w", errMissing, errAccept)
		}
	} else if err := s.permit(ctx, rd); err != nil {
		return err
	}
	header := w.Header()
	if result == stale {
		age := int64(time.Since(now.asked) / time.Second)
		header.Set("Warning", `110 - "Response is Stale"`)
		header.Set("Age", strconv.FormatInt(age, 10))
	}
	if rd.Method == http.MethodHead && isTag(rd.which) && now.Size > 0 {
		s.count(result)
		describe(header, now.Descriptor)
		w.WriteHeader(http.StatusOK)
		return nil
	}
	m, from, err := s.manifest(ctx, rd, domain, id)
	if err != nil {
		header.Del("Warning")
		header.Del("Age")
		return err
	}
	if !accepts(rd.Header, m.MediaType) {
		return fmt.Errorf("%w: %w", errMissing, errAccept)
	}
	if result == cached {
		result = from
	}
	s.count(result)
	describe(header, descriptor(m))
	w.WriteHeader(http.StatusOK)
	if rd.Method == http.MethodGet {
		_, _ = w.Write(m.Bytes) // the client may have gone
		s.notice(rd, domain, m)
	}
	return nil
}

func descriptor(m registry.Manifest) v1.Descriptor {
	return v1.Descriptor{MediaType: m.MediaType, Digest: digest.Digest(m.Digest), Size: int64(len(m.Bytes))}
}

// describe sets the header of an answer with a manifest.
func describe(header http.Header, d v1.Descriptor) {
	header.Set("Content-Type", d.MediaType)
	header.Set("Content-Length", strconv.FormatInt(d.Size, 10))
	header.Set("Docker-Content-Digest", d.Digest.String())
	header.Set("ETag", `"`+d.Digest.String()+`"`)
}

// accepts reports whether a client accepts a media type. A client that says nothing accepts all.
func accepts(header http.Header, mediaType string) bool {
	all := header.Values("Accept")
	if len(all) == 0 {
		return true
	}
	for one := range strings.SplitSeq(strings.Join(all, ","), ",") {
		one, _, _ = strings.Cut(one, ";")
		if one = strings.TrimSpace(one); one == mediaType || one == "*/*" || one == "application/*" {
			return true
		}
	}
	return false
}

// resolve returns what a tag stands for. It asks the registry if that was not done lately. If that
// is not possible, the result is stale.
func (s *Service) resolve(ctx context.Context, rd *reader) (tag, result, error) {
	key := rd.repository + ":" + rd.which
	before, known := s.tags.Get(key)
	if known && time.Since(before.asked) < time.Duration(rd.registry.TagSeconds)*time.Second {
		return before, cached, s.permit(ctx, rd)
	}
	// A GET is not needed to learn what a tag stands for. Some registries count it as a pull.
	byHead := known || rd.Method == http.MethodHead
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if known { // there is something to answer with
		waiting, cancel = context.WithTimeoutCause(ctx, staleAfter, errUnavailable)
	}
	defer cancel()
	what := fmt.Sprintf("tag %s %t", rd.which, byHead)
	err := s.ask(waiting, rd, what, func(ctx context.Context, from *pull.Source) error {
		d, err := s.lookUp(ctx, rd, from, byHead)
		switch {
		case err == nil:
			s.tags.Add(key, tag{d, time.Now()})
			s.names.Add(rd.repository+"@"+d.Digest.String(), rd.which)
		case kindOf(err) == errMissing:
			s.tags.Remove(key)
		}
		return err
	})
	now, ok := s.tags.Get(key)
	switch {
	case err == nil && ok:
		return now, fetched, nil
	case err == nil:
		return tag{}, 0, fmt.Errorf("%w: too many tags are read", errUnavailable)
	case errors.Is(err, errUnavailable) && known:
		return before, stale, s.permit(ctx, rd)
	}
	return tag{}, 0, err
}

// lookUp asks a registry what a tag stands for.
func (s *Service) lookUp(ctx context.Context, rd *reader, from *pull.Source, byHead bool) (v1.Descriptor, error) {
	if byHead {
		d, err := from.Stat(ctx, rd.which)
		if err != nil || d.Digest != "" && d.Size > 0 {
			return d, err
		}
	}
	m, err := from.Manifest(ctx, rd.which)
	if err != nil {
		return v1.Descriptor{}, err
	}
	s.keep(rd.repository, m)
	return descriptor(m), nil
}

// manifest returns a manifest by digest, of a repository that the reader may read.
func (s *Service) manifest(
	ctx context.Context, rd *reader, domain *Domain, id string,
) (m registry.Manifest, from result, err error) {
	if m, ok := s.manifests.get(rd.repository + "@" + id); ok {
		return m, cached, nil
	}
	if m, err := domain.Registry.Repository(rd.own).Manifest(ctx, id); err == nil {
		s.keep(rd.repository, m)
		return m, kept, nil
	}
	err = s.ask(ctx, rd, "manifest "+id, func(ctx context.Context, from *pull.Source) error {
		got, err := from.Manifest(ctx, id)
		if err == nil {
			s.keep(rd.repository, got)
		}
		return err
	})
	if err != nil {
		return m, 0, err
	}
	if m, ok := s.manifests.get(rd.repository + "@" + id); ok {
		return m, fetched, nil
	}
	return m, 0, fmt.Errorf("%w: too many manifests are read", errUnavailable)
}

// Recent returns a manifest that was read lately, whoever may read it.
func (s *Service) Recent(repository, digest string) (registry.Manifest, bool) {
	return s.manifests.get(repository + "@" + digest)
}

// Pushed notes that a client has just pushed a manifest to a repository. tagged is empty if it
// was pushed by digest.
func (s *Service) Pushed(repository, tagged string, m registry.Manifest) {
	s.keep(repository, m)
	if tagged != "" {
		s.tags.Add(repository+":"+tagged, tag{descriptor(m), time.Now()})
		s.names.Add(repository+"@"+m.Digest, tagged)
	}
}

// keep keeps a manifest, the sizes of the blobs that it names, and which manifests it is the index
// of.
func (s *Service) keep(repository string, m registry.Manifest) {
	s.manifests.add(repository+"@"+m.Digest, m)
	var parsed struct {
		Config    v1.Descriptor   `json:"config"`
		Layers    []v1.Descriptor `json:"layers"`
		Manifests []v1.Descriptor `json:"manifests"`
	}
	if json.Unmarshal(m.Bytes, &parsed) != nil {
		return
	}
	for _, d := range append(parsed.Layers, parsed.Config) {
		if d.Digest.Validate() == nil && d.Size >= 0 {
			s.sizes.Add(repository+"@"+d.Digest.String(), d.Size)
		}
	}
	for _, d := range parsed.Manifests {
		platform := ""
		if d.Platform != nil {
			platform = oci.PlatformName(*d.Platform)
		}
		s.parents.Add(repository+"@"+d.Digest.String(), parent{m.Digest, platform})
	}
}

// manifestCache has manifests in memory. It is safe for concurrent use.
type manifestCache struct {
	mu    sync.Mutex // guards the following
	all   *simplelru.LRU[string, registry.Manifest]
	bytes int
}

func newManifestCache() *manifestCache {
	c := &manifestCache{}
	// It fails only for sizes below 1.
	c.all, _ = simplelru.NewLRU(maxManifests, func(_ string, m registry.Manifest) { c.bytes -= len(m.Bytes) })
	return c
}

func (c *manifestCache) get(key string) (registry.Manifest, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.Get(key)
}

func (c *manifestCache) add(key string, m registry.Manifest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all.Remove(key) // Add would not report that an older one goes
	c.bytes += len(m.Bytes)
	c.all.Add(key, m)
	for c.bytes > maxManifestBytes {
		c.all.RemoveOldest()
	}
}
