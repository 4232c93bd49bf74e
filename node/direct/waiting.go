package direct

import (
	"maps"
	"slices"
	"sync"
)

// maxWaiting bounds the images that wait because a pull has named them. Further ones wait for the
// next pull.
const maxWaiting = 256

// waiting are the images that are not answered before their layers were verified.
type waiting struct {
	mu     sync.Mutex
	places map[place]bool
	failed string // why layers could not be verified lately
}

func (w *waiting) add(p place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.places == nil {
		w.places = map[place]bool{}
	}
	if len(w.places) < maxWaiting {
		w.places[p] = true
	}
}

func (w *waiting) remove(p place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.places, p)
}

// list returns the images that wait.
func (w *waiting) list() []place {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.places))
}

func (w *waiting) fail(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = why
}

// Status is the state of the images that start from their registry.
type Status struct {
	Trees      int    `json:"trees"`            // that were made on this machine
	Unverified int    `json:"unverifiedTrees"`  // of them: some of their layers were not read as a whole yet
	Wrong      int    `json:"wrongTrees"`       // of them: a layer differs from its table, so they are not mounted
	Waiting    int    `json:"waitingImages"`    // images that start lazily once their layers were verified
	Failed     string `json:"failed,omitempty"` // why layers could not be verified lately
}

// Status returns the state.
func (m *Images) Status() (s Status) {
	for _, im := range m.kept.images() {
		s.Trees++
		switch unknown, err := m.verdicts.check(im.claims()); {
		case err != nil:
			s.Wrong++
		case unknown > 0:
			s.Unverified++
		}
	}
	m.waiting.mu.Lock()
	defer m.waiting.mu.Unlock()
	s.Waiting, s.Failed = len(m.waiting.places), m.waiting.failed
	return s
}
