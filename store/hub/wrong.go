package hub

import "sync"

// maxWrong bounds the paths with a wrong answer that are remembered, of one hub.
const maxWrong = 1024

// wrongAnswers are the paths whose last answer was not the object. An HTTP cache may keep
// such an answer, for as long as it would keep the object: the next request goes past it.
type wrongAnswers struct {
	mu    sync.Mutex // guards paths
	paths map[string]bool
}

// was reports whether the last answer for a path was wrong.
func (w *wrongAnswers) was(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.paths[path]
}

// add notes a wrong answer. When there are too many paths all are forgotten: the next
// wrong answer is remembered again.
func (w *wrongAnswers) add(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paths == nil || len(w.paths) >= maxWrong {
		w.paths = map[string]bool{}
	}
	w.paths[path] = true
}

// forget notes that the object came.
func (w *wrongAnswers) forget(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.paths, path)
}
