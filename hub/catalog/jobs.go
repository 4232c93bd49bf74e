package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"lighter/hub/catalog/database"
)

// Job is a piece of the hub's work. At any time there is at most one open job of a kind and a key.
// It is open until it is done, failed or cancelled.
//
// A worker owns the job that it runs for a lease, by the database's clock. It extends the lease
// while it works. When the lease has ended, another worker may run the job. Fence counts the
// owners. What a worker writes about the job, its images and their names depends on it: only the
// last owner can write.
type Job struct {
	N        int64
	Kind     string
	Key      string // what the job is about
	Root     string // of the images that the job ingests, whose name is the key; empty: none
	State    string // wire.JobQueued, …
	Request  string // wire.JobAgain, …: what the worker of a running job is asked to do
	Payload  []byte
	Secret   []byte // sealed; empty when the job has ended
	Priority int64  // jobs with higher ones run first
	RunAt    time.Time
	Attempts int64 // since it was requested
	Owner    string
	Fence    int64
	Unsealed time.Time // since when the secret is gone; zero: the job has it, or never had one
	Progress []byte    // as the worker reports it
	Result   []byte    // what the worker has found out, as JSON; its form depends on the kind
	Error    string    // of the last attempt
	Created  time.Time
	Updated  time.Time

	// ByUser says that a user asks for the job that is added, so that it runs even if it is paused.
	ByUser bool
	// Postpones says that a queued job, when it is added again, waits for the whole delay again.
	Postpones bool
}

// Jobs has the hub's jobs, and the claims of layers by their workers. It is safe for concurrent
// use.
type Jobs struct{ db *database.DB }

const openJob = `state IN ('queued', 'running', 'paused')`

const jobColumns = `n, kind, key, root, state, request, payload, secret, priority, run_at, attempts, owner, fence,
	unsealed, progress, result, error, created, updated`

func (j *Job) fields() []any {
	return []any{
		&j.N, &j.Kind, &j.Key, &j.Root, &j.State, &j.Request, &j.Payload, &j.Secret, &j.Priority,
		database.Stamp(&j.RunAt), &j.Attempts, &j.Owner, &j.Fence, database.Stamp(&j.Unsealed), &j.Progress, &j.Result,
		&j.Error, database.Stamp(&j.Created), database.Stamp(&j.Updated),
	}
}

// Add queues a job of the given Kind, Key, Root, Payload, Secret and Priority, to run after delay.
// If there is an open job of that kind and key, it gets the payload: a queued job runs once, with
// the new payload, and a running job runs again afterwards. A paused job stays paused, unless a
// user asks for it (ByUser). Add returns the job's number.
func (q *Jobs) Add(ctx context.Context, j Job, delay time.Duration) (n int64, err error) {
	err = q.db.Update(ctx, "queue job "+j.Kind+" "+j.Key, func(tx database.Session) error {
		n, err = addJob(ctx, tx, j, delay)
		return err
	})
	return n, err
}

// AddMerged queues a job as Add does, to run at once. merge gets the open job of that kind and key,
// or a zero job if there is none, and returns the payload. No other request comes in between.
func (q *Jobs) AddMerged(ctx context.Context, j Job, merge func(open Job) ([]byte, error)) (n int64, err error) {
	err = q.db.Update(ctx, "queue job "+j.Kind+" "+j.Key, func(tx database.Session) error {
		if err := lockJob(ctx, tx, j.Kind, j.Key); err != nil {
			return err
		}
		open, err := openOf(ctx, tx, j.Kind, j.Key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if j.Payload, err = merge(open); err != nil {
			return err
		}
		n, err = addJob(ctx, tx, j, 0)
		return err
	})
	return n, err
}

// AddNew queues a job as Add does, and returns its number. If there is an open job of that kind and
// key, AddNew changes nothing and returns 0.
func (q *Jobs) AddNew(ctx context.Context, j Job) (n int64, err error) {
	err = q.db.Update(ctx, "queue job "+j.Kind+" "+j.Key, func(tx database.Session) error {
		n, err = insertJob(ctx, tx, j, 0, `NOTHING`)
		if errors.Is(err, ErrNotFound) {
			n, err = 0, nil
		}
		return err
	})
	return n, err
}

func addJob(ctx context.Context, tx database.Session, j Job, delay time.Duration) (int64, error) {
	return insertJob(ctx, tx, j, delay, `UPDATE
			SET root = excluded.root, payload = excluded.payload, secret = excluded.secret, unsealed = 0, attempts = 0,
			error = '',
			priority = excluded.priority, updated = excluded.updated,
			state = CASE WHEN jobs.state = 'paused' AND ? THEN 'queued' ELSE jobs.state END,
			run_at = CASE WHEN ? OR excluded.run_at < jobs.run_at OR
				jobs.state = 'running' AND jobs.request IN ('', 'cancel', 'pause') THEN excluded.run_at
				ELSE jobs.run_at END,
			request = CASE WHEN jobs.state <> 'running' THEN ''
				WHEN jobs.request IN ('pause', 'pause again') AND NOT ? THEN 'pause again'
				WHEN jobs.request IN ('cancel', 'restart') OR jobs.payload <> excluded.payload THEN 'restart'
				ELSE 'again' END`, j.ByUser, j.Postpones, j.ByUser)
}

// insertJob adds a job. otherwise, with args, is the action of ON CONFLICT if there is an open job
// of that kind and key. insertJob returns the number of the row that it has added or changed, or
// ErrNotFound.
func insertJob(
	ctx context.Context, tx database.Session, j Job, delay time.Duration, otherwise string, args ...any,
) (int64, error) {
	if err := lockJob(ctx, tx, j.Kind, j.Key); err != nil {
		return 0, err
	}
	n, err := reserve(ctx, tx, "jobs", 1)
	if err != nil {
		return 0, err
	}
	inserted := []any{n, j.Kind, j.Key, j.Root, append([]byte{}, j.Payload...), append([]byte{}, j.Secret...),
		j.Priority, delay.Milliseconds(), []byte{}}
	return database.Get(ctx, tx, database.Value[int64], `
		INSERT INTO jobs (n, kind, key, root, state, request, payload, secret, priority, run_at, attempts, owner, fence,
			lease, progress, error, created, updated)
		VALUES (?, ?, ?, ?, 'queued', '', ?, ?, ?, `+tx.Clock+` + ?, 0, '', 0, 0, ?, '', `+tx.Clock+`, `+tx.Clock+`)
		ON CONFLICT (kind, key) WHERE `+openJob+` DO `+otherwise+` RETURNING n`, append(inserted, args...)...)
}

// AddDue queues a job, unless one of its kind and key is open, or has ended less than every ago. It
// reports whether it has queued the job. If several processes call it at the same time, only one of
// them queues the job. If the job is not due because one has ended recently, after is the time
// until it is due: the caller need not ask again before. A call reads the jobs that have ended
// since the last job of that kind and key.
func (q *Jobs) AddDue(
	ctx context.Context, j Job, every time.Duration,
) (queued bool, after time.Duration, err error) {
	isDue := func(in database.Session) (due bool, err error) {
		open, err := database.Get(ctx, in, database.Value[bool],
			`SELECT EXISTS (SELECT 1 FROM jobs WHERE kind = ? AND key = ?
			AND `+openJob+`)`, j.Kind, j.Key)
		if err != nil || open {
			return false, err
		}
		age, err := database.Get(ctx, in, func(age *time.Duration) []any { return []any{database.Milliseconds(age)} },
			`SELECT `+in.Clock+` - updated FROM jobs WHERE kind = ? AND key = ? AND NOT `+openJob+`
			ORDER BY updated DESC LIMIT 1`, j.Kind, j.Key)
		if errors.Is(err, ErrNotFound) {
			return true, nil
		}
		after = max(every-age, 0)
		return age >= every, err
	}
	due, err := isDue(q.db.Read) // mostly the job is not due, and no transaction is needed
	if err != nil || !due {
		return false, after, err
	}
	err = q.db.Update(ctx, "queue job "+j.Kind+" "+j.Key, func(tx database.Session) error {
		queued = false
		if err := lockJob(ctx, tx, j.Kind, j.Key); err != nil {
			return err
		}
		due, err := isDue(tx)
		if err != nil || !due {
			return err
		}
		queued = true
		_, err = addJob(ctx, tx, j, 0)
		return err
	})
	return queued && err == nil, after, err
}

// Withdraw removes the queued job of j's kind and key if, since it was added with j's payload,
// nobody has claimed it or added it with another payload. Otherwise it makes the open job of that
// kind and key run as soon as possible, and once more if it is running. If there is no open job,
// Withdraw adds j. lasted reports whether the job was open with j's payload until now.
func (q *Jobs) Withdraw(ctx context.Context, j Job) (lasted bool, err error) {
	err = q.db.Update(ctx, "withdraw job "+j.Kind+" "+j.Key, func(tx database.Session) error {
		err := tx.Change(ctx, errKnown, `DELETE FROM jobs WHERE kind = ? AND key = ? AND state = 'queued' AND fence = 0
			AND payload = ?`, j.Kind, j.Key, j.Payload)
		if lasted = err == nil; !errors.Is(err, errKnown) {
			return err
		}
		payload, err := database.Get(ctx, tx, database.Value[[]byte], `UPDATE jobs SET run_at = `+tx.Clock+`,
				request = CASE WHEN state = 'running' AND request = '' THEN 'again' ELSE request END
			WHERE kind = ? AND key = ? AND `+openJob+` RETURNING payload`, j.Kind, j.Key)
		if lasted = err == nil && bytes.Equal(payload, j.Payload); errors.Is(err, ErrNotFound) {
			_, err = addJob(ctx, tx, j, 0)
		}
		return err
	})
	return lasted && err == nil, err
}

// Hurry makes all queued jobs of a kind run as soon as possible.
func (q *Jobs) Hurry(ctx context.Context, kind string) error {
	return q.db.Exec(ctx, "run jobs of kind "+kind, `UPDATE jobs SET run_at = `+q.db.Write.Clock+`
		WHERE kind = ? AND state = 'queued' AND run_at > `+q.db.Write.Clock, kind)
}

// Slot is room for one job of a kind.
type Slot struct {
	Kind     string
	Priority int64 // the least priority of the job
}

// Claim gives owner the next job to run that fits into one of the slots, for a lease. The error is
// ErrNotFound if there is none. A claim counts as an attempt: see Uncount.
func (q *Jobs) Claim(ctx context.Context, owner string, slots []Slot, lease time.Duration) (j Job, err error) {
	if len(slots) == 0 {
		return j, ErrNotFound
	}
	fits, args := "", []any{}
	for _, s := range slots {
		fits += ` OR kind = ? AND priority >= ?`
		args = append(args, s.Kind, s.Priority)
	}
	fits = fits[len(" OR "):]
	clock := q.db.Read.Clock
	due, err := database.Get(ctx, q.db.Read, database.Value[bool], `
		SELECT EXISTS (SELECT 1 FROM jobs WHERE state = 'running' AND lease < `+clock+`)
			OR EXISTS (SELECT 1 FROM jobs WHERE state = 'queued' AND run_at <= `+clock+` AND (`+fits+`))`, args...)
	if err != nil {
		return j, fmt.Errorf("claim a job: %w", err)
	}
	if !due { // mostly: each domain of each process looks every second
		return j, ErrNotFound
	}
	args = append([]any{owner, lease.Milliseconds()}, args...)
	err = q.db.Update(ctx, "claim a job", func(tx database.Session) error {
		if err := expireJobs(ctx, tx); err != nil {
			return err
		}
		j, err = database.Get(ctx, tx, (*Job).fields, `
			UPDATE jobs SET state = 'running', request = '',
				attempts = attempts + 1, owner = ?, fence = fence + 1, lease = `+tx.Clock+` + ?, updated = `+tx.Clock+`
			WHERE n = (SELECT n FROM jobs WHERE state = 'queued' AND run_at <= `+tx.Clock+` AND (`+fits+`)
				ORDER BY priority DESC, run_at, n LIMIT 1`+tx.Skip+`)
			RETURNING `+jobColumns, args...)
		if errors.Is(err, ErrNotFound) {
			return nil // the transaction commits what has expired
		}
		return err
	})
	if err == nil && j.N == 0 {
		err = ErrNotFound
	}
	return j, err
}

// lockJob locks the open job of a kind and key until the transaction ends. If there is none, nobody
// else can add one before the transaction ends. A transaction locks a job before its images, as
// workers do, and before it reserves numbers. So no two transactions wait for each other.
func lockJob(ctx context.Context, tx database.Session, kind, key string) error {
	lock := func() (bool, error) {
		open, err := database.List(ctx, tx, database.Value[int64],
			`SELECT n FROM jobs WHERE kind = ? AND key = ? AND `+openJob+tx.Lock, kind, key)
		return len(open) > 0, err
	}
	open, err := lock()
	if err != nil || open || tx.LockName == "" {
		return err
	}
	if err := tx.Exec(ctx, tx.LockName, "job "+kind+" "+key); err != nil {
		return err
	}
	_, err = lock() // another transaction may have added it meanwhile
	return err
}
