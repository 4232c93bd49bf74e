package catalog

import (
	"context"
	"fmt"
	"time"

	"lighter/hub/catalog/database"
)

// EventRemoved is the kind of the event that an image was removed. The kinds of all other events
// are the images' new states.
const EventRemoved = "removed"

// Event is a change of an image's state, or its removal. The transaction that has changed the image
// has added the event: a trigger of the database does so.
type Event struct {
	N        int64  // number of the row; later events mostly have higher numbers
	ID       string // random; it is the same in copies of the catalog
	Kind     string
	Name     string
	Root     string
	Digest   string
	Platform string
	Error    string // of a failed image
	At       time.Time
}

func (e *Event) fields() []any {
	return []any{&e.N, &e.ID, &e.Kind, &e.Name, &e.Root, &e.Digest, &e.Platform, &e.Error, database.Stamp(&e.At)}
}

const eventColumns = `e.n, e.id, e.kind, e.name, e.root, e.digest, e.platform, e.error, e.at`

// Delivery is an event that a target is to get, or did not get.
type Delivery struct {
	Event
	Target   string
	Attempts int64
	Age      time.Duration // of the event, by the database's clock
	Due      time.Time     // when the next attempt may be made
	Dead     time.Time     // since when no attempt is made any more; zero: attempts are made
	Failure  string        // of the last attempt
}

func (d *Delivery) fields() []any {
	return append(d.Event.fields(), &d.Target, &d.Attempts, database.Milliseconds(&d.Age),
		database.Stamp(&d.Due), database.Stamp(&d.Dead), &d.Failure)
}

// deliveryQuery returns a query of deliveries, without its conditions.
func deliveryQuery(in database.Session) string {
	return `SELECT ` + eventColumns + `, d.target, d.attempts, ` + in.Clock + ` - e.at, d.due, d.dead, d.error
		FROM deliveries d JOIN events e ON e.n = d.event `
}

// Events has the changes of images, and which of them targets are to get. It is safe for concurrent
// use.
type Events struct{ db *database.DB }

// Distribute adds the deliveries of at most limit new events. targets returns the names of the
// targets that are to get an event. Distribute returns the number of events.
func (c *Events) Distribute(ctx context.Context, limit int, targets func(Event) []string) (n int, err error) {
	err = c.db.Update(ctx, "distribute events", func(tx database.Session) error {
		events, err := database.List(ctx, tx, (*Event).fields, `SELECT `+eventColumns+` FROM events e
			WHERE e.unsent = 1 ORDER BY e.n LIMIT ?`+tx.Skip, limit)
		n = len(events)
		for i := 0; i < n && err == nil; i++ {
			for _, target := range targets(events[i]) {
				if err := tx.Exec(ctx, `INSERT INTO deliveries (event, target, attempts, due, dead, error)
					VALUES (?, ?, 0, `+tx.Clock+`, 0, '')`, events[i].N, target); err != nil {
					return err
				}
			}
			err = tx.Exec(ctx, `UPDATE events SET unsent = 0 WHERE n = ?`, events[i].N)
		}
		return err
	})
	return n, err
}

// HasNew reports whether there are events that Distribute has not seen.
func (c *Events) HasNew(ctx context.Context) (bool, error) {
	return database.Get(ctx, c.db.Read, database.Value[bool], `SELECT EXISTS (SELECT 1 FROM events WHERE unsent = 1)`)
}

// IsDue reports whether an attempt to deliver to a target may be made.
func (c *Events) IsDue(ctx context.Context, target string) (bool, error) {
	return database.Get(ctx, c.db.Read, database.Value[bool],
		`SELECT EXISTS (SELECT 1 FROM deliveries WHERE target = ? AND dead = 0 AND due <= `+c.db.Read.Clock+`)`, target)
}

// Due returns at most limit deliveries to a target that are due, the oldest events first.
func (c *Events) Due(ctx context.Context, target string, limit int) ([]Delivery, error) {
	return database.List(ctx, c.db.Read, (*Delivery).fields, deliveryQuery(c.db.Read)+
		`WHERE d.target = ? AND d.dead = 0 AND d.due <= `+c.db.Read.Clock+` ORDER BY d.event LIMIT ?`, target, limit)
}

// Delivered removes a delivery: its target has the event.
func (c *Events) Delivered(ctx context.Context, d Delivery) error {
	return c.db.Exec(ctx, "note a delivered event", `DELETE FROM deliveries WHERE event = ? AND target = ?`, d.N,
		d.Target)
}

// Failed records a failed attempt. The next one may be made after a pause. If dead, none is made
// any more.
func (c *Events) Failed(ctx context.Context, d Delivery, failure string, pause time.Duration, dead bool) error {
	since := "0"
	if dead {
		since = c.db.Write.Clock
	}
	return c.db.Exec(ctx, "note a failed delivery", `UPDATE deliveries SET attempts = attempts + 1, error = ?,
		due = `+c.db.Write.Clock+` + ?, dead = `+since+` WHERE event = ? AND target = ?`,
		failure, pause.Milliseconds(), d.N, d.Target)
}

// Rest makes all deliveries to a target wait for at least a pause, as the target fails them now.
func (c *Events) Rest(ctx context.Context, target, failure string, pause time.Duration) error {
	return c.db.Update(ctx, "rest target "+target, func(tx database.Session) error {
		return tx.Exec(ctx, `UPDATE deliveries SET due = `+tx.Clock+` + ?, error = ?
			WHERE target = ? AND dead = 0 AND due < `+tx.Clock+` + ?`,
			pause.Milliseconds(), failure, target, pause.Milliseconds())
	})
}

// EventBounds bound what the catalog keeps of events.
type EventBounds struct {
	Events  int           // that are no longer to be delivered
	Age     time.Duration // of these events
	Waiting int           // deliveries that attempts are made of; beyond it, the oldest become dead
	Lasting time.Duration // from an event until its deliveries become dead
	Dead    int           // dead deliveries
	Kept    time.Duration // from when a delivery is dead until it is removed
}

// Prune keeps the bounds. It returns the numbers of deliveries that have become dead and of dead
// ones that it has removed.
func (c *Events) Prune(ctx context.Context, b EventBounds) (died, removed int64, err error) {
	err = c.db.Update(ctx, "remove old events", func(tx database.Session) error {
		var late, beyond, old, many int64
		for _, step := range []struct {
			n         *int64
			statement string
			args      []any
		}{
			{&late, `UPDATE deliveries SET dead = ` + tx.Clock + `,
				error = CASE WHEN error = '' THEN 'no attempt was made in time' ELSE error END
				WHERE dead = 0 AND event IN (SELECT n FROM events WHERE at < ` + tx.Clock + ` - ?)`,
				[]any{b.Lasting.Milliseconds()}},
			{&beyond, `UPDATE deliveries SET dead = ` + tx.Clock + `, error = 'too many deliveries waited'
				WHERE dead = 0 AND event <= COALESCE((SELECT event FROM deliveries WHERE dead = 0
					ORDER BY event DESC LIMIT 1 OFFSET ?), -1)`, []any{b.Waiting}},
			{&old, `DELETE FROM deliveries WHERE dead > 0 AND dead < ` + tx.Clock + ` - ?`, []any{b.Kept.Milliseconds()}},
			{&many, `DELETE FROM deliveries WHERE dead > 0 AND event <= COALESCE((SELECT event FROM deliveries
				WHERE dead > 0 ORDER BY event DESC LIMIT 1 OFFSET ?), -1)`, []any{b.Dead}},
			{new(int64), `DELETE FROM events WHERE unsent = 0
				AND (at < ` + tx.Clock + ` - ? OR n <= COALESCE((SELECT n FROM events ORDER BY n DESC LIMIT 1 OFFSET ?), -1))
				AND NOT EXISTS (SELECT 1 FROM deliveries WHERE event = events.n)`,
				[]any{b.Age.Milliseconds(), b.Events}},
		} {
			n, err := tx.ExecCount(ctx, step.statement, step.args...)
			if err != nil {
				return err
			}
			*step.n = n
		}
		died, removed = late+beyond, old+many
		return nil
	})
	return died, removed, err
}

// Deliveries returns at most limit deliveries: dead ones or those that attempts are made of, the
// latest events first.
func (c *Events) Deliveries(ctx context.Context, dead bool, limit int) ([]Delivery, error) {
	condition := `d.dead = 0`
	if dead {
		condition = `d.dead > 0`
	}
	return database.List(ctx, c.db.Read, (*Delivery).fields,
		deliveryQuery(c.db.Read)+`WHERE `+condition+` ORDER BY d.event DESC, d.target LIMIT ?`, limit)
}

// Latest returns at most limit events, the latest first.
func (c *Events) Latest(ctx context.Context, limit int) ([]Event, error) {
	return database.List(ctx, c.db.Read, (*Event).fields,
		`SELECT `+eventColumns+` FROM events e ORDER BY e.n DESC LIMIT ?`, limit)
}

// After returns at most limit events with numbers above n, in their order. With PostgreSQL, an
// event may be committed after others with higher numbers.
func (c *Events) After(ctx context.Context, n int64, limit int) ([]Event, error) {
	return database.List(ctx, c.db.Read, (*Event).fields,
		`SELECT `+eventColumns+` FROM events e WHERE e.n > ? ORDER BY e.n LIMIT ?`, n, limit)
}

// Revive makes dead deliveries due again: those of the event with an ID, or all if it is empty. It
// returns their number. They are dead again if the next attempt fails.
func (c *Events) Revive(ctx context.Context, id string) (n int64, err error) {
	err = c.db.Update(ctx, "retry dead deliveries", func(tx database.Session) error {
		condition, args := ``, []any(nil)
		if id != "" {
			condition, args = ` AND event IN (SELECT n FROM events WHERE id = ?)`, []any{id}
		}
		if n, err = tx.ExecCount(ctx, `UPDATE deliveries SET dead = 0, due = `+tx.Clock+` WHERE dead > 0`+condition,
			args...); err == nil && n == 0 && id != "" {
			err = fmt.Errorf("event %s: %w among the dead deliveries", id, ErrNotFound)
		}
		return err
	})
	return n, err
}

// Count counts deliveries by target and whether they are dead.
func (c *Events) Count(ctx context.Context) (waiting, dead map[string]int64, err error) {
	waiting, dead = map[string]int64{}, map[string]int64{}
	type row struct {
		target  string
		dead, n int64
	}
	for r, err := range database.Rows(ctx, c.db.Read, func(r *row) []any { return []any{&r.target, &r.dead, &r.n} },
		`SELECT target, CASE WHEN dead > 0 THEN 1 ELSE 0 END AS is_dead, COUNT(*) FROM deliveries GROUP BY target, is_dead`) {
		if err != nil {
			return nil, nil, err
		}
		if r.dead > 0 {
			dead[r.target] = r.n
		} else {
			waiting[r.target] = r.n
		}
	}
	return waiting, dead, nil
}
