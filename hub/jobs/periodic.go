package jobs

import (
	"context"
	"time"

	"lighter/hub/catalog"
	"lighter/sleep"
)

const (
	keepEnded   = 7 * 24 * time.Hour // from the end of a job until it is forgotten, at least
	forgetEvery = time.Hour
	forgetBatch = 1000 // jobs removed in one transaction
)

// addDue adds periodic jobs when they are due, until ctx ends. It skips a kind until its next job
// can be due, because each query reads many rows if many jobs have ended.
func (q *Queue) addDue(ctx context.Context) {
	next := map[string]time.Time{} // by kind
	for sleep.For(ctx, q.DueInterval) {
		for _, k := range q.kinds {
			if k.Every == 0 || time.Now().Before(next[k.Name]) {
				continue
			}
			queued, after, err := q.store.AddDue(ctx, catalog.Job{Kind: k.Name, Key: k.Key}, k.Every)
			next[k.Name] = time.Now().Add(after)
			if err != nil && ctx.Err() == nil {
				q.log.Error("a periodic job could not be queued", "kind", k.Name, "err", err)
			}
			if queued {
				q.Changed(k.Name, k.Key)
			}
		}
	}
}

// forget cancels jobs of retired kinds, until ctx ends. It also removes jobs that ended long ago,
// logins of jobs that have been paused for long, and claims of jobs that no longer run. An ended
// periodic job stays until the next one has become due, because AddDue needs its time.
func (q *Queue) forget(ctx context.Context) {
	keep := keepEnded
	for _, k := range q.kinds {
		keep = max(keep, k.Every+forgetEvery)
	}
	for {
		retired, err := q.store.Retire(ctx, q.retired)
		if err != nil && ctx.Err() == nil {
			q.log.Error("jobs of earlier releases could not be cancelled", "err", err)
		}
		if retired > 0 {
			q.log.Info("jobs of earlier releases cancelled", "jobs", retired, "kinds", q.retired)
		}
		removed, err := q.store.Forget(ctx, keep, forgetBatch)
		if err != nil && ctx.Err() == nil {
			q.log.Error("ended jobs could not be removed", "err", err)
		}
		pause := forgetEvery
		if removed == forgetBatch {
			pause = time.Second
		}
		if !sleep.For(ctx, pause) {
			return
		}
	}
}
