package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lighter/hub/catalog/database"
	"lighter/wire"
)

// Lease is a worker's right to change what a job is about.
type Lease struct {
	Job, Fence int64
	Root       string // of the job when the worker claimed it
}

// Lease returns the lease of a claimed job.
func (j *Job) Lease() Lease { return Lease{j.N, j.Fence, j.Root} }

// ErrLost means that a worker no longer owns its job: its lease has ended, and another worker may
// run the job.
var ErrLost = errors.New("the job's lease has ended")

// lost returns ErrLost instead of ErrNotFound: a statement has found no job with the lease's number
// and fence.
func lost(err error) error {
	if errors.Is(err, ErrNotFound) {
		return ErrLost
	}
	return err
}

// Extend extends a lease, and stores the worker's progress. It returns what the worker is asked
// to do, or ErrLost.
func (q *Jobs) Extend(
	ctx context.Context, l Lease, lease time.Duration, progress []byte,
) (request string, err error) {
	err = q.db.Update(ctx, fmt.Sprintf("extend the lease of job %d", l.Job), func(tx database.Session) error {
		request, err = database.Get(ctx, tx, database.Value[string],
			`UPDATE jobs SET lease = `+tx.Clock+` + ?, progress = ?,
			updated = `+tx.Clock+` WHERE n = ? AND fence = ? AND state = 'running' RETURNING request`,
			lease.Milliseconds(), append([]byte{}, progress...), l.Job, l.Fence)
		return lost(err)
	})
	return request, err
}

// Hold returns ErrLost if the owner of a lease may no longer change what its job is about: see
// hold.
func (q *Jobs) Hold(ctx context.Context, l Lease) error {
	return q.db.Update(ctx, fmt.Sprintf("hold job %d", l.Job), func(tx database.Session) error {
		return hold(ctx, tx, l)
	})
}

// HoldUnchanged returns ErrLost if the owner of a lease no longer owns its job, or if the job has a
// request: see holdUnchanged.
func (q *Jobs) HoldUnchanged(ctx context.Context, l Lease) error {
	return q.db.Update(ctx, fmt.Sprintf("hold job %d", l.Job), func(tx database.Session) error {
		return holdUnchanged(ctx, tx, l)
	})
}

// hold returns ErrLost if a worker no longer owns its job, or if the job is to be cancelled, or has
// another root now. Otherwise none of that happens before the transaction ends.
func hold(ctx context.Context, tx database.Session, l Lease) error {
	return tx.Change(ctx, ErrLost, `UPDATE jobs SET updated = `+tx.Clock+`
		WHERE n = ? AND fence = ? AND root = ? AND state = 'running' AND request <> 'cancel'`, l.Job, l.Fence, l.Root)
}

// holdUnchanged returns ErrLost if a worker no longer owns its job, or if the job has a request: it
// was added again, or is to be paused or cancelled. Otherwise none of that happens before the
// transaction ends. The zero lease is that of a user's request, which changes anything without a
// job.
func holdUnchanged(ctx context.Context, tx database.Session, l Lease) error {
	if l == (Lease{}) {
		return nil
	}
	return tx.Change(ctx, ErrLost, `UPDATE jobs SET updated = `+tx.Clock+`
		WHERE n = ? AND fence = ? AND state = 'running' AND request = ''`, l.Job, l.Fence)
}

// Uncount makes a worker's attempt not count. A worker calls it once, when it has lost its lease:
// its process has not ended, but could not reach the database in time.
func (q *Jobs) Uncount(ctx context.Context, l Lease) error {
	return q.db.Exec(ctx, fmt.Sprintf("take back an attempt at job %d", l.Job),
		`UPDATE jobs SET attempts = attempts - 1 WHERE n = ? AND fence >= ? AND attempts > 0`,
		l.Job, l.Fence)
}

// DropLeases ends the leases of owners whose names begin with ended: their process has ended. Their
// jobs can run again at once.
func (q *Jobs) DropLeases(ctx context.Context, ended string) error {
	return q.db.Update(ctx, "drop leases", func(tx database.Session) error {
		return tx.Exec(ctx, `UPDATE jobs SET lease = 0 WHERE substr(owner, 1, ?) = ? AND state = 'running'`,
			len(ended), ended)
	})
}

// ClaimLayer gives the owner of a lease the right to split a layer. claimed is false if another
// owner has that right. An owner has it until it calls ReleaseLayers, publishes an image, or loses
// its job.
func (q *Jobs) ClaimLayer(ctx context.Context, l Lease, diffID string) (claimed bool, err error) {
	err = q.db.Update(ctx, "claim layer "+wire.ShortDigest(diffID), func(tx database.Session) error {
		if err := hold(ctx, tx, l); err != nil {
			return err
		}
		err := tx.Change(ctx, ErrNotFound, `INSERT INTO claims (diff_id, job, fence) VALUES (?, ?, ?)
			ON CONFLICT (diff_id) DO UPDATE SET job = excluded.job, fence = excluded.fence
			WHERE claims.job = excluded.job AND claims.fence = excluded.fence OR NOT EXISTS (SELECT 1 FROM jobs j
				WHERE j.n = claims.job AND j.fence = claims.fence AND j.state = 'running' AND j.lease >= `+tx.Clock+`)`,
			diffID, l.Job, l.Fence)
		claimed = err == nil
		if errors.Is(err, ErrNotFound) {
			err = nil
		}
		return err
	})
	return claimed, err
}

// LayerOwner returns the job whose worker was the last to get the right to split a layer. The error
// is ErrNotFound if the worker has released the layer.
func (q *Jobs) LayerOwner(ctx context.Context, diffID string) (Job, error) {
	return database.Get(ctx, q.db.Read, (*Job).fields, `SELECT `+jobColumns+` FROM jobs
		WHERE n = (SELECT job FROM claims WHERE diff_id = ?)`, diffID)
}

// ReleaseLayers ends all rights of the owner of a lease to split layers.
func (q *Jobs) ReleaseLayers(ctx context.Context, l Lease) error {
	return q.db.Update(ctx, fmt.Sprintf("release the layers of job %d", l.Job), func(tx database.Session) error {
		return releaseLayers(ctx, tx, &Publication{Lease: l})
	})
}

func releaseLayers(ctx context.Context, tx database.Session, p *Publication) error {
	return tx.Exec(ctx, `DELETE FROM claims WHERE job = ? AND fence = ?`, p.Lease.Job, p.Lease.Fence)
}
