package ingest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	wire "lighter/store/hub"
)

// job is the work on one image, as those see it who wait for it.
type job struct {
	done chan struct{} // closed when the image is ready, failed, stored or gone

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

// maxItems bounds what is told of one image.
const maxItems = 1000

// item adds an item to the job's story.
func (j *job) item(step, name string, total int64) *item {
	i := &item{step: step, name: name, total: total}
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.items) < maxItems {
		j.items = append(j.items, i)
	}
	return i
}

// teller reports a job's items as they change.
type teller struct {
	job  *job
	told map[*item]int64
}

// news returns what changed since it was last asked.
func (t *teller) news() []wire.Progress {
	t.job.mu.Lock()
	items := t.job.items
	t.job.mu.Unlock()
	var news []wire.Progress
	for _, i := range items {
		bytes := i.bytes.Load()
		if told, known := t.told[i]; known && told == bytes {
			continue
		}
		t.told[i] = bytes
		news = append(news, wire.Progress{Step: i.step, Item: i.name, Bytes: bytes, Total: i.total})
	}
	return news
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

// finish ends the job of an image, after the catalog says how it ended.
func (s *Service) finish(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[n]; j != nil {
		close(j.done)
		delete(s.jobs, n)
	}
}

// tellEvery is how often those who wait hear of progress.
const tellEvery = 200 * time.Millisecond

// await reports the progress of a job until it is done. An error of tell, or
// the end of ctx, ends the waiting and not the work.
func (j *job) await(ctx context.Context, tell func(wire.Progress) error) error {
	t := teller{job: j, told: map[*item]int64{}}
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		done := false
		select {
		case <-j.done:
			done = true
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		for _, p := range t.news() {
			if err := tell(p); err != nil {
				return err
			}
		}
		if done {
			return nil
		}
	}
}
