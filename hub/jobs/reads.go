package jobs

import (
	"context"
	"fmt"
	"time"

	"lighter/hub/away"
	"lighter/hub/report"
)

// readPauses are the default of Queue.ReadPauses. The first pause is short, for a hiccup. The
// second one is longer than a disk needs to come back, or a change of a bucket's rules of access to
// reach all its servers, and short enough that users get the reason within half an hour. There are
// three attempts in all, maxAttempts: those during which the hub has ended count, too. More would
// not help, because an attempt counts only if the store works just after it.
var readPauses = []time.Duration{time.Minute, 15 * time.Minute}

// boundReads returns run with bounded attempts if one object cannot be read although its store
// works: waiting does not help then, and the job has failed after the last attempt. While the store
// does not work either, attempts do not count, so an outage only delays the job, however long it
// lasts.
func (q *Queue) boundReads(run Run) Run {
	return func(ctx context.Context, j *Running) error {
		err := run(ctx, j)
		read := away.OneRead(err)
		if read == nil || ctx.Err() != nil {
			return err
		}
		if worksErr := read.Works(ctx); worksErr != nil || ctx.Err() != nil {
			return err
		}
		if n := int(j.Attempts); n <= len(q.ReadPauses) {
			return &RetryError{Err: err, After: q.ReadPauses[max(n, 1)-1], counted: true}
		}
		q.log.Error("an object cannot be read although its store works: the job has failed", "kind", j.Kind,
			"key", j.Key, "object", read.Object, "err", report.Logged(err))
		return away.Final(fmt.Errorf("%s cannot be read, although other files can: %s: %w",
			read.Object, read.Remedy, read.Err))
	}
}
