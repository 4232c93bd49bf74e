package pushthrough

import "lighter/hub/pullthrough"

// result is how a request, or the queueing of an image, has ended.
type result int

const (
	passed    result = iota // the registry has answered a request
	failed                  // it has not
	queued                  // an image is to be ingested, or is known
	private                 // an image is not ingested: not everybody may read it
	moved                   // an image is not ingested: another one has its tag
	other                   // a manifest is not that of an image of a wanted platform
	notQueued               // an image could not be queued
	results
)

// names of results: of requests, and of images.
var (
	requestResults = map[result]string{passed: "passed", failed: "failed"}
	imageResults   = map[result]string{queued: "queued", private: "private", moved: "moved", other: "other",
		notQueued: "failed"}
)

func (s *Service) count(r result) { s.counts[r].Add(1) }

// Requests returns how many requests have had each result.
func (s *Service) Requests() map[string]int64 { return pullthrough.ByName(s.counts[:], requestResults) }

// Images returns how many pushed images have had each result.
func (s *Service) Images() map[string]int64 { return pullthrough.ByName(s.counts[:], imageResults) }
