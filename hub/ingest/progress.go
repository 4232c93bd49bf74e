package ingest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"lighter/hub/catalog"

	"lighter/wire"
)

// story is what can be told of some work.
type story struct {
	mu    sync.Mutex // guards the following
	items []*item
}

// item is one thing of which some part is done.
type item struct {
	step, name string
	total      int64
	bytes      atomic.Int64
}

func (i *item) add(n int) { i.bytes.Add(int64(n)) }

// maxItems bounds a story.
const maxItems = 1000

// item adds an item to the story.
func (s *story) item(step, name string, total int64) *item {
	i := &item{step: step, name: name, total: total}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.items) < maxItems {
		s.items = append(s.items, i)
	}
	return i
}

// job is an image on its way to an end, as those see it who wait for it.
type job struct {
	story
	done chan struct{} // closed when the image is ready, failed, stored or gone
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

// finish tells those who wait for an image that it has come to its end, after the
// catalog says which, and ends the copies that it alone was waiting for.
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

// teller reports stories as they go on.
type teller struct {
	tell func(wire.Progress) error
	told map[*item]int64
}

func newTeller(tell func(wire.Progress) error) *teller {
	return &teller{tell: tell, told: map[*item]int64{}}
}

// tellEvery is how often those who wait hear of progress.
const tellEvery = 200 * time.Millisecond

// await tells the stories until done is closed. An error of tell, or the end of
// ctx, ends the waiting and not the work.
func (t *teller) await(ctx context.Context, done <-chan struct{}, stories ...*story) error {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for _, s := range stories {
			if err := t.news(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// news tells what of a story has changed.
func (t *teller) news(s *story) error {
	s.mu.Lock()
	items := s.items
	s.mu.Unlock()
	for _, i := range items {
		bytes := i.bytes.Load()
		if told, known := t.told[i]; known && told == bytes {
			continue
		}
		t.told[i] = bytes
		if err := t.tell(wire.Progress{Step: i.step, Item: i.name, Bytes: bytes, Total: i.total}); err != nil {
			return err
		}
	}
	return nil
}
