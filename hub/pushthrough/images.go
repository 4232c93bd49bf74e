package pushthrough

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"lighter/hub/oci"
	"lighter/hub/pullthrough"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/sleep"
)

const (
	// patience is how long a client waits for the queue.
	patience = 5 * time.Second
	// tries bounds the attempts to queue a pushed image, tryTime each of them.
	tries   = 8
	tryTime = 30 * time.Second
)

// pauses has the pauses between the attempts: four minutes together.
var pauses = sleep.Backoff{First: 2 * time.Second, Most: time.Minute, Jitter: 0.5}

// pushed is a manifest that a client pushes.
type pushed struct {
	*front
	domain     *Domain
	repository string // HOST[:PORT]/PATH
	which      string // tag or digest
	mediaType  string
	copy       *copied
}

type pushedKey struct{}

// copyManifest returns a request whose body is copied to p.
func copyManifest(req *http.Request, p *pushed) *http.Request {
	p.mediaType, _, _ = strings.Cut(req.Header.Get("Content-Type"), ";")
	p.mediaType = strings.TrimSpace(p.mediaType)
	req = req.WithContext(context.WithValue(req.Context(), pushedKey{}, p))
	p.copy = &copied{ReadCloser: req.Body}
	req.Body = p.copy
	return req
}

// copied is the body of a manifest. It keeps as many bytes as a manifest may have.
type copied struct {
	io.ReadCloser
	bytes bytes.Buffer
	whole bool // all bytes were read and kept
}

// Read reads the next bytes, and keeps them.
func (c *copied) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	fits := c.bytes.Len()+n <= registry.MaxManifest
	if fits {
		c.bytes.Write(p[:n])
	}
	c.whole = fits && (c.whole || err == io.EOF)
	return n, err
}

// accepted handles a manifest that the registry has accepted. answered is the digest that the
// registry has answered, which may be empty.
func (p *pushed) accepted(answered string) {
	s := p.service
	m, err := p.manifest(answered)
	if err != nil {
		s.config.Log.Warn("a pushed image is not ingested", "repository", p.repository, "which", p.which, "err", err)
		s.count(notQueued)
		return
	}
	tag := p.which
	if strings.Contains(tag, ":") {
		tag = ""
	}
	s.config.Through.Pushed(p.repository, tag, m)
	if tag == "" {
		return
	}
	name := p.repository + ":" + tag
	s.noticed.Add(name, m.Digest)
	layers, err := s.layersOf(p.repository, m)
	if err != nil {
		s.config.Log.Debug("a pushed manifest is not ingested", "repository", p.repository, "tag", tag,
			"err", report.Logged(err))
		s.count(other)
		return
	}
	image := pullthrough.Image{Repository: p.repository, Tag: tag, Root: m.Digest, Manifest: m.Digest}
	over, err := s.inTurn(s.slots, name, func() { s.queue(p, image, layers) })
	if err != nil {
		s.config.Log.Warn("a pushed image is not ingested", "repository", p.repository, "tag", tag, "err", err)
		s.count(notQueued)
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	}
}

// notice notes that a client has found a tag at the registry. Some clients look before they push an
// image, and push nothing if the registry has it. So an image that another push brought, during
// which the hub was killed, is ingested when the client pushes it again.
func (f *front) notice(req *http.Request, found string) {
	parts := manifestPath.FindStringSubmatch(req.URL.Path)
	id, err := digest.Parse(found)
	if parts == nil || err != nil || id.Algorithm() != digest.SHA256 || strings.Contains(parts[2], ":") {
		return
	}
	repository, domain := f.domainOf(parts[1])
	s, name := f.service, repository+":"+parts[2]
	if domain == nil {
		return
	}
	if before, ok := s.noticed.Get(name); ok && before == found {
		return
	}
	image := pullthrough.Image{Repository: repository, Tag: parts[2], Root: found, Manifest: found}
	p := &pushed{front: f, domain: domain, repository: repository, which: parts[2]}
	s.noticed.Add(name, found)
	if _, err := s.inTurn(s.finds, name, func() { s.queue(p, image, nil) }); err != nil {
		s.noticed.Remove(name)
	}
}

// manifest returns what was pushed. An error says that the registry cannot have accepted it under
// this digest.
func (p *pushed) manifest(answered string) (registry.Manifest, error) {
	b := bytes.Clone(p.copy.bytes.Bytes())
	if !p.copy.whole {
		return registry.Manifest{}, fmt.Errorf("the registry has accepted a manifest that it has not read, "+
			"or that has more than %d bytes", registry.MaxManifest)
	}
	for _, text := range []string{p.which, answered} {
		want, err := digest.Parse(text)
		if err == nil && want.Algorithm().FromBytes(b) != want {
			return registry.Manifest{}, fmt.Errorf("the registry has accepted a manifest of %d bytes as %s, which is "+
				"not their digest", len(b), want)
		}
	}
	m := registry.Manifest{MediaType: p.mediaType, Digest: digest.FromBytes(b).String(), Bytes: b}
	return m, nil
}

var errMany = errors.New("too many images are pushed, or the hub is stopping")

// inTurn calls fn when the earlier calls for the same name have ended. over is closed after that.
func (s *Service) inTurn(slots *semaphore.Weighted, name string, fn func()) (over <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !slots.TryAcquire(1) {
		return nil, errMany
	}
	before, mine := s.turns[name], make(chan struct{})
	s.turns[name] = mine
	s.tasks.Go(func() {
		if before != nil {
			<-before
		}
		fn()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.turns[name] == mine {
			delete(s.turns, name)
		}
		slots.Release(1)
		close(mine)
	})
	return mine, nil
}

// queue queues an image, if everybody who reaches the hub may read it. If that fails, it is tried
// again when a client finds the tag (notice).
func (s *Service) queue(p *pushed, image pullthrough.Image, layers []string) {
	log := s.config.Log.With("repository", image.Repository, "tag", image.Tag, "digest", image.Root)
	for n := 1; ; n++ {
		err := s.try(p, image, layers)
		switch {
		case err == nil:
			s.count(queued)
			return
		case errors.Is(err, pullthrough.ErrPrivate):
			log.Debug("a pushed image is not ingested: not everybody may read it", "err", report.Logged(err))
			s.count(private)
			return
		case errors.Is(err, pullthrough.ErrMoved):
			log.Debug("a pushed image is not ingested: another one has its tag")
			s.count(moved)
			s.noticed.Remove(image.Repository + ":" + image.Tag)
			return
		case s.life.Err() != nil:
			return
		case n == tries || errors.Is(err, report.ErrInvalid) || errors.Is(err, registry.ErrQuota):
			log.Warn("a pushed image is not ingested", "err", report.Logged(err))
			s.count(notQueued)
			s.noticed.Remove(image.Repository + ":" + image.Tag)
			return
		}
		log.Warn("a pushed image is not queued yet", "err", report.Logged(err))
		if !sleep.For(s.life, pauses.After(n)) {
			return
		}
	}
}

func (s *Service) try(p *pushed, image pullthrough.Image, layers []string) error {
	ctx, cancel := context.WithTimeout(s.life, tryTime)
	defer cancel()
	if err := s.config.Through.Admit(ctx, &p.Rule, image.Repository, image.Tag, image.Root); err != nil {
		return err
	}
	p.domain.Uploads.Admit(image.Repository, layers) // before the image's job asks for them
	return p.domain.Ingest(ctx, image)
}

// layersOf returns the layers of the images of a manifest that are for wanted platforms. Of an
// index, it knows the manifests that were pushed lately. An error says that there is no such image.
func (s *Service) layersOf(repository string, m registry.Manifest) (layers []string, err error) {
	members, err := oci.ExpandWanted(s.life, recent{s.config.Through, repository}, m, s.config.Platforms)
	if err != nil {
		return nil, err
	}
	if len(members.Indexes) == 0 && !members.HasWanted() {
		return nil, &oci.NotImageError{Why: "its media type is " + m.MediaType}
	}
	for _, one := range members.Manifests {
		var parsed v1.Manifest
		if !one.Wanted || json.Unmarshal(one.Bytes, &parsed) != nil {
			continue
		}
		for _, d := range parsed.Layers {
			layers = append(layers, d.Digest.String())
		}
	}
	return layers, nil
}

// recent has the manifests that were pushed lately. It has no configs.
type recent struct {
	Through
	repository string
}

var _ oci.Reader = recent{}

// Manifest implements oci.Reader.
func (r recent) Manifest(_ context.Context, digest string) (registry.Manifest, error) {
	if m, ok := r.Recent(r.repository, digest); ok {
		return m, nil
	}
	return registry.Manifest{}, registry.ErrNotFound
}

// Config implements oci.Reader. An image whose platform is not known counts as wanted.
func (r recent) Config(context.Context, v1.Descriptor) ([]byte, error) { return []byte("{}"), nil }
