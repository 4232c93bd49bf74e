package pullthrough

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/registry"
	"lighter/hub/report"
)

// Image is an image that was pulled through the hub, and that everybody who reaches the hub may
// read.
type Image struct {
	Repository string // HOST[:PORT]/PATH
	Tag        string // empty: the image was pulled by digest
	Root       string // digest of what the tag stands for
	Manifest   string // digest of the manifest that was pulled
	Platform   string // OS/ARCH[/VARIANT]; empty: not known
	Own        bool   // it is read with the hub's own login
}

const (
	// maxPulls bounds the images whose pulls are in progress. Further ones are ingested after a
	// later pull.
	maxPulls = 256
	// pullTime bounds how long an image waits for the end of the reads of its repository.
	pullTime = 30 * time.Minute
	// unpackRate is about how many compressed bytes a client pulls and unpacks in a second.
	// Ingestion begins when the client has probably done that: a hub on the same machine would take
	// its processors. It waits for maxUnpack at most, because the next client wants a lazy image.
	unpackRate = 35e6
	maxUnpack  = 15 * time.Second
)

// pulls has the images that are pulled now.
type pulls struct {
	service *Service

	mu     sync.Mutex // guards the following
	closed bool
	all    map[string]*pulled // by REPOSITORY@DIGEST of the manifest
	reads  map[string]int     // of blobs, by repository
}

// pulled is one of these images.
type pulled struct {
	image  Image
	reader *reader
	domain *Domain
	since  time.Time
	last   time.Time // end of the last read of a blob of the repository
	until  time.Time // the client has probably unpacked the image then
	timer  *time.Timer
}

// transfer notes that a blob of a repository is read, until done is called.
func (p *pulls) transfer(repository string) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reads == nil {
		p.reads = map[string]int{}
	}
	p.reads[repository]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.reads[repository]--; p.reads[repository] == 0 {
			delete(p.reads, repository)
		}
		for _, one := range p.all {
			if one.image.Repository == repository {
				one.last = time.Now()
			}
		}
	}
}

// notice notes that a client pulls an image, if a manifest is one of an image.
func (s *Service) notice(rd *reader, domain *Domain, m registry.Manifest) {
	var parsed v1.Manifest
	if json.Unmarshal(m.Bytes, &parsed) != nil || len(parsed.Layers) == 0 || parsed.Config.Digest == "" {
		return
	}
	image := Image{Repository: rd.repository, Root: m.Digest, Manifest: m.Digest, Own: rd.login.Own}
	if of, ok := s.parents.Get(rd.repository + "@" + m.Digest); ok {
		image.Platform = of.platform
		if _, ok := s.names.Get(rd.repository + "@" + m.Digest); !ok {
			image.Root = of.index
		}
	}
	image.Tag, _ = s.names.Get(rd.repository + "@" + image.Root)
	p := &s.pulls
	p.mu.Lock()
	defer p.mu.Unlock()
	key := rd.repository + "@" + m.Digest
	if p.closed || p.all[key] != nil || len(p.all) >= maxPulls {
		return
	}
	if p.all == nil {
		p.all = map[string]*pulled{}
	}
	now := time.Now()
	one := &pulled{image: image, reader: rd, domain: domain, since: now, last: now, until: now.Add(unpackTime(parsed))}
	one.timer = time.AfterFunc(s.config.Settle, func() { p.check(key) })
	p.all[key] = one
}

// unpackTime returns about how long a client pulls and unpacks an image, up to maxUnpack.
func unpackTime(m v1.Manifest) time.Duration {
	bytes := 0.0
	for _, l := range m.Layers {
		bytes += float64(max(l.Size, 0))
	}
	return time.Duration(min(bytes/unpackRate, maxUnpack.Seconds()) * float64(time.Second))
}

// check queues the ingestion of an image whose pull has ended.
func (p *pulls) check(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.all[key]
	if one == nil || p.closed {
		return
	}
	settle := p.service.config.Settle
	isRead := p.reads[one.image.Repository] > 0 || time.Since(one.last) < settle || time.Now().Before(one.until)
	if isRead && time.Since(one.since) < pullTime {
		one.timer.Reset(settle)
		return
	}
	delete(p.all, key)
	p.service.tasks.Go(func() { p.service.ingest(one) })
}

// close forgets the images.
func (p *pulls) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, one := range p.all {
		one.timer.Stop()
	}
}

// ingest queues the ingestion of an image, if everybody who reaches the hub may read it.
func (s *Service) ingest(one *pulled) {
	ctx, cancel := context.WithTimeout(s.life, askTimeout)
	defer cancel()
	log := s.config.Log.With("repository", one.image.Repository, "tag", one.image.Tag, "digest", one.image.Root)
	if one.reader.login != one.reader.registry.everybody() { // otherwise, everybody has read it just now
		err := s.Admit(ctx, one.reader.registry, one.image.Repository, one.image.Manifest, one.image.Manifest)
		if err != nil {
			log.Debug("a pulled image is not ingested: not everybody may read it", "err", report.Logged(err))
			s.count(private)
			return
		}
	}
	if err := one.domain.Ingest(ctx, one.image); err != nil {
		if !errors.Is(err, context.Canceled) {
			log.Warn("a pulled image is not ingested", "err", report.Logged(err))
		}
		s.count(notQueued)
		return
	}
	s.count(queued)
}
