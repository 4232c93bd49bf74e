package store

import (
	"sync"
	"time"

	"lighter/format/chunk"
)

// absences remembers the chunks that no origin has. The kernel reads a page several times before a
// process gets an input/output error. Only the first of these reads waits for missingTime; the
// others fail at once. A key holds the chunk and its unit, so a chunk that has moved to another
// unit does not count as absent.
type absences struct {
	mu     sync.Mutex // guards chunks
	chunks map[chunk.Ref]absence
}

// absence means that all answers from first to last said that no origin has the chunk. err is the
// error of the last answer.
type absence struct {
	first, last time.Time
	err         error
}

func (a absence) isLasting() bool { return a.last.Sub(a.first) >= missingTime }

// known returns the last answer's error if the chunk has been absent for missingTime and that
// answer is younger than maxPause. So a process that reads such a chunk again and again causes few
// requests.
func (a *absences) known(ref chunk.Ref) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if entry, ok := a.chunks[ref]; ok && entry.isLasting() && time.Since(entry.last) < maxPause {
		return entry.err
	}
	return nil
}

// missed notes that no origin has the chunk, and reports whether the chunk has been absent for
// missingTime.
func (a *absences) missed(ref chunk.Ref, err error) (lasting bool) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	entry, ok := a.chunks[ref]
	if !ok || now.Sub(entry.last) > missingTime {
		entry.first = now
	}
	entry.last, entry.err = now, err
	if !ok && len(a.chunks) >= maxAbsences {
		clear(a.chunks) // repeated reads of these chunks wait for missingTime again
	}
	if a.chunks == nil {
		a.chunks = map[chunk.Ref]absence{}
	}
	a.chunks[ref] = entry
	return entry.isLasting()
}

// forget notes an answer that does not say that the chunk is absent.
func (a *absences) forget(ref chunk.Ref) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.chunks, ref)
}
