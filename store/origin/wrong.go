package origin

import "sync"

// wrongAnswers are the paths for which an origin last gave something that is not the object. An
// HTTP cache may keep such an answer, so the next request for the path bypasses caches.
type wrongAnswers struct {
	mu    sync.Mutex // guards paths
	paths map[string]bool
}

func (w *wrongAnswers) has(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.paths[path]
}

// add adds a path. If there are too many, all others are forgotten.
func (w *wrongAnswers) add(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paths == nil || len(w.paths) >= maxWrong {
		w.paths = map[string]bool{}
	}
	w.paths[path] = true
}

func (w *wrongAnswers) remove(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.paths, path)
}
