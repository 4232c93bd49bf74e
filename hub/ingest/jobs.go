package ingest

import (
	"lighter/hub/catalog"
	"lighter/hub/report"
)

// job is an image that is queued or active, as its waiting clients see it.
type job struct {
	report.Progress
	done chan struct{} // closed when the image is ready, failed, stored or removed
}

// job returns the job of an image, whether its turn has come or not.
func (s *Service) job(n int64) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[n]
	if j == nil {
		j = &job{done: make(chan struct{})}
		s.jobs[n] = j
	}
	return j
}

// finish wakes the clients that wait for an image, after the catalog has its final state, and ends
// the copies that only this image was waiting for.
func (s *Service) finish(image catalog.Image) {
	s.mu.Lock()
	if j := s.jobs[image.N]; j != nil {
		close(j.done)
		delete(s.jobs, image.N)
	}
	var copies []*imageCopy
	for key, c := range s.copies {
		if key.name == image.Name {
			copies = append(copies, c)
		}
	}
	s.mu.Unlock()
	for _, c := range copies {
		s.endUnwanted(c)
	}
}
