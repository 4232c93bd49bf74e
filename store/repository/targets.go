package repository

import (
	"net/url"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/opencontainers/go-digest"
)

const (
	// targetLife is how long it is remembered where a blob's redirect has led to. Registries sign
	// such URLs for 5 to 20 minutes. A place that refuses a request is forgotten at once.
	targetLife = 2 * time.Minute
	// maxTargets bounds the blobs of a repository whose targets are remembered, and maxTarget the
	// length of a URL in bytes. The least recently used ones are forgotten.
	maxTargets = 256
	maxTarget  = 8 << 10
)

// targets remembers where the redirects of blobs have led to. It is safe for concurrent use.
type targets struct {
	byBlob *lru.Cache[digest.Digest, place]
}

type place struct {
	url   *url.URL
	until time.Time
}

func newTargets() targets {
	byBlob, _ := lru.New[digest.Digest, place](maxTargets) // it fails for sizes below 1
	return targets{byBlob}
}

// get returns the target of a blob, or nil.
func (t targets) get(blob digest.Digest) *url.URL {
	p, ok := t.byBlob.Get(blob)
	if !ok || time.Now().After(p.until) {
		return nil
	}
	return p.url
}

// add remembers a new target. One that is remembered keeps its end.
func (t targets) add(blob digest.Digest, to *url.URL) {
	if len(to.Path)+len(to.RawQuery) <= maxTarget {
		t.byBlob.Add(blob, place{to, time.Now().Add(targetLife)})
	}
}

func (t targets) forget(blob digest.Digest) { t.byBlob.Remove(blob) }
