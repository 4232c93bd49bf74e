package pullthrough

import (
	"errors"
	"sync/atomic"
)

// result is how a request, or the ingestion of an image, has ended.
type result int

const (
	cached      result = iota // a manifest from memory
	fetched                   // a manifest that the registry has sent, or a tag that it has confirmed
	stale                     // a tag's last manifest: the registry could not be asked
	kept                      // from the hub's own registry
	passed                    // a blob of the other registry
	missing                   // the registry does not have it
	denied                    // the client may not read it
	unavailable               // the registry could not be read
	queued                    // an image is to be ingested, or is known
	private                   // an image is not ingested: not everybody may read it
	notQueued                 // an image could not be queued
	results
)

// names of results: of requests, and of images.
var (
	requestResults = map[result]string{cached: "cached", fetched: "fetched", stale: "stale", kept: "stored",
		passed: "passed", missing: "missing", denied: "denied", unavailable: "unavailable"}
	imageResults = map[result]string{queued: "queued", private: "private", notQueued: "failed"}
)

func (s *Service) count(r result) { s.counts[r].Add(1) }

// Requests returns how many requests have had each result.
func (s *Service) Requests() map[string]int64 { return ByName(s.counts[:], requestResults) }

// Images returns how many pulled images have had each result.
func (s *Service) Images() map[string]int64 { return ByName(s.counts[:], imageResults) }

// ByName returns the counts of named results.
func ByName[R ~int](counts []atomic.Int64, names map[R]string) map[string]int64 {
	all := map[string]int64{}
	for r, name := range names {
		all[name] = counts[r].Load()
	}
	return all
}

// resultOf returns what an error is counted as.
func resultOf(err error) result {
	switch {
	case errors.Is(err, errMissing):
		return missing
	case errors.Is(err, errDenied):
		return denied
	}
	return unavailable
}
