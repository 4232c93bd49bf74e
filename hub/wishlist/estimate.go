package wishlist

import (
	"context"
	"time"

	"lighter/hub/catalog"
	"lighter/wire"
)

const (
	paceOf    = 300 // ended jobs from which the pace is taken
	leastPace = 10  // pauses between ends of jobs that are needed for it
)

// estimate estimates how long the hub takes to ingest the images that were queued, or would be.
func (p *pass) estimate(ctx context.Context) {
	if p.result.Fetched == 0 {
		return
	}
	ended, err := p.config.Catalog.Jobs.List(ctx, true, paceOf)
	if err != nil {
		p.config.Log.Warn("the ended jobs could not be read: no estimate", "list", p.list.Name, "err", err)
	}
	p.result.Seconds = int64((time.Duration(p.result.Fetched) * pace(ended, p.config.ImageJobs)).Seconds())
}

// pace returns how much time there was between the ends of two jobs of a kind, on average, while
// the hub had work of that kind: the later job was there when the earlier one ended. ended are
// jobs, the last one first. If there were too few, pace returns 0.
func pace(ended []catalog.Job, kind string) time.Duration {
	var later *catalog.Job
	var sum time.Duration
	n := 0
	for i, j := range ended {
		if j.Kind != kind || j.State != wire.JobDone {
			continue
		}
		if later != nil && !later.Created.After(j.Updated) {
			sum += later.Updated.Sub(j.Updated)
			n++
		}
		later = &ended[i]
	}
	if n < leastPace {
		return 0
	}
	return sum / time.Duration(n)
}
