package catalog

import (
	"context"
	"slices"
	"strings"
	"time"

	"lighter/hub/catalog/database"
	"lighter/wire"
)

// Wanters are those who may want an image. Lists and hooks have a name after the prefix.
const (
	ByHand        = "hand"
	ByPullThrough = "pull-through"
	ByPushThrough = "push-through"
	ListPrefix    = "list "
	HookPrefix    = "hook "
)

// ByUsers are the wanters that want an image because of what a user has done once.
var ByUsers = []string{ByHand, ByPullThrough, ByPushThrough}

// Want says that a wanter wants an image.
type Want struct {
	Name      string // of the image
	By        string // ByHand, ByPullThrough, ByPushThrough, or a name after ListPrefix or HookPrefix
	Source    string // docker://HOST/REPO:TAG; empty: the image was pushed or added by hand
	PlainHTTP bool   // plain HTTP is allowed for the source
	Platforms []string
	MayRemove bool   // the want ends when the source no longer has the image
	ByRules   bool   // the retention rules may remove the image
	Dropped   bool   // the image is no longer wanted by this wanter; the row goes with the image
	Released  bool   // a retention rule has removed the image; only another digest brings it back
	Seen      string // digest that the source had when the image was added last
	Error     string // why the last look at the source has failed
	Since     time.Time
}

// Images is what the catalog has under the name of a want.
type Images struct {
	Have   int64     // images under the digest that the source had last; 0: none
	Failed time.Time // when the first of them that have failed has failed; zero: none
	Any    bool      // the name has images
}

// Wanted is a want, with what the catalog has under its name.
type Wanted struct {
	Want
	Images
}

// Wants has who wants which image. An image that has no want is wanted by hand. It is safe for
// concurrent use.
type Wants struct{ db *database.DB }

const wantColumns = `w.name, w.wanter, w.source, w.plain_http = 1, w.platforms, w.may_remove = 1, w.by_rules = 1,
	w.dropped = 1, w.released = 1, w.seen, w.error, w.since`

// haveColumns are those of Images, for table wants w. They compare an expression with seen, so that
// the images are found by their name: very many names may have the same root.
const haveColumns = `(SELECT COUNT(*) FROM images i WHERE i.name = w.name AND i.root || '' = w.seen),
	COALESCE((SELECT MIN(i.updated) FROM images i WHERE i.name = w.name AND i.root || '' = w.seen
		AND i.state || '' = ?), 0),
	EXISTS (SELECT 1 FROM images i WHERE i.name = w.name)`

func (w *Want) fields() []any {
	return []any{&w.Name, &w.By, &w.Source, &w.PlainHTTP, commas{&w.Platforms}, &w.MayRemove, &w.ByRules, &w.Dropped,
		&w.Released, &w.Seen, &w.Error, database.Stamp(&w.Since)}
}

func (w *Wanted) fields() []any {
	return append(w.Want.fields(), &w.Have, database.Stamp(&w.Failed), &w.Any)
}

// commas scans texts that are separated by commas.
type commas struct{ texts *[]string }

// Scan implements sql.Scanner.
func (c commas) Scan(stored any) error {
	text, _ := stored.(string)
	if *c.texts = nil; text != "" {
		*c.texts = strings.Split(text, ",")
	}
	return nil
}

// Of returns the wants of an image, with what the catalog has of it, sorted by wanter.
func (w *Wants) Of(ctx context.Context, name string) ([]Wanted, error) {
	return database.List(ctx, w.db.Read, (*Wanted).fields, `SELECT `+wantColumns+`, `+haveColumns+`
		FROM wants w WHERE w.name = ? ORDER BY w.wanter`, wire.StateFailed, name)
}

// By returns the wants of a wanter, with what the catalog has of each, sorted by name.
func (w *Wants) By(ctx context.Context, by string) ([]Wanted, error) {
	return database.List(ctx, w.db.Read, (*Wanted).fields, `SELECT `+wantColumns+`, `+haveColumns+`
		FROM wants w WHERE w.wanter = ? ORDER BY w.name`, wire.StateFailed, by)
}

// Count returns the number of images that each wanter wants.
func (w *Wants) Count(ctx context.Context) (map[string]int64, error) {
	return database.Map(ctx, w.db.Read, database.KeyValue[string, int64],
		`SELECT wanter, COUNT(*) FROM wants WHERE dropped = 0 GROUP BY wanter`)
}

// Keepers returns, by the name of the image, one list whose images the retention rules must not
// remove. Images that no such list wants are not in the result.
func (w *Wants) Keepers(ctx context.Context, name string) (map[string]string, error) {
	condition, args := "", []any{ListPrefix + "%"}
	if name != "" {
		condition, args = ` AND name = ?`, append(args, name)
	}
	return database.Map(ctx, w.db.Read, database.KeyValue[string, string], `SELECT name, MIN(wanter) FROM wants
		WHERE wanter LIKE ? AND dropped = 0 AND by_rules = 0`+condition+` GROUP BY name`, args...)
}

// wantsPerUpdate bounds the wants that one transaction changes: others wait for it.
const wantsPerUpdate = 200

// Add records wants and queues the job that jobOf returns for each name, if it is not nil. A want
// with another source, or for other platforms, counts as not seen yet. If the name of a first want
// has images, these count as wanted by hand, too. Wants of the first wantsPerUpdate names are
// committed together.
func (w *Wants) Add(ctx context.Context, wants []Want, jobOf func(name string) Job) error {
	wants = slices.Clone(wants)
	slices.SortFunc(wants, func(a, b Want) int { return strings.Compare(a.Name+" "+a.By, b.Name+" "+b.By) })
	for batch := range slices.Chunk(wants, wantsPerUpdate) {
		err := w.db.Update(ctx, "want images", func(tx database.Session) error {
			if err := lockLooks(ctx, tx, batch); err != nil {
				return err
			}
			for _, want := range batch {
				if err := addWant(ctx, tx, want); err != nil {
					return err
				}
				if jobOf == nil {
					continue
				}
				if _, err := addJob(ctx, tx, jobOf(want.Name), 0); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lockLooks locks the jobs that look at images, in the order of their names, before any row of
// these names is changed: see lockJob.
func lockLooks(ctx context.Context, tx database.Session, wants []Want) error {
	for _, want := range wants {
		if err := lockJob(ctx, tx, LookJob, want.Name); err != nil {
			return err
		}
	}
	return nil
}

func addWant(ctx context.Context, tx database.Session, w Want) error {
	if w.By != ByHand {
		if err := tx.Exec(ctx, insertWant+` SELECT ?, ?, '', 0, '', 0, 1, 0, 0, '', '', `+tx.Clock+`
			WHERE EXISTS (SELECT 1 FROM images WHERE name = ?) AND NOT EXISTS (SELECT 1 FROM wants WHERE name = ?)`,
			w.Name, ByHand, w.Name, w.Name); err != nil {
			return err
		}
	}
	const isSame = `wants.source = excluded.source AND wants.plain_http = excluded.plain_http
		AND wants.platforms = excluded.platforms AND wants.dropped = 0`
	return tx.Exec(ctx, insertWant+` VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, '', '', `+tx.Clock+`)
		ON CONFLICT (name, wanter) DO UPDATE SET source = excluded.source, plain_http = excluded.plain_http,
			platforms = excluded.platforms, may_remove = excluded.may_remove, by_rules = excluded.by_rules,
			dropped = 0, seen = CASE WHEN `+isSame+` THEN wants.seen ELSE '' END,
			released = CASE WHEN `+isSame+` THEN wants.released ELSE 0 END,
			error = CASE WHEN `+isSame+` THEN wants.error ELSE '' END`,
		w.Name, w.By, w.Source, flag(w.PlainHTTP), strings.Join(w.Platforms, ","), flag(w.MayRemove), flag(w.ByRules))
}

const insertWant = `INSERT INTO wants (name, wanter, source, plain_http, platforms, may_remove, by_rules, dropped,
	released, seen, error, since)`

func flag(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

// wantByHand records that a person wants an image that others want, too, or have wanted.
func wantByHand(ctx context.Context, tx database.Session, name string) error {
	return tx.Exec(ctx, insertWant+` SELECT ?, ?, '', 0, '', 0, 1, 0, 0, '', '', `+tx.Clock+`
		WHERE EXISTS (SELECT 1 FROM wants WHERE name = ?)
		ON CONFLICT (name, wanter) DO UPDATE SET dropped = 0`, name, ByHand, name)
}

// Looked records that a wanter's image was looked at: the digest that its source has, or why the
// look has failed. It changes nothing if the want has another source by now.
func (w *Wants) Looked(ctx context.Context, want Want, seen, reason string) error {
	if want.Seen == seen && want.Error == reason {
		return nil
	}
	return w.db.Exec(ctx, "note the look at "+want.Name, `UPDATE wants SET error = ?,
			seen = CASE WHEN ? = '' THEN seen ELSE ? END,
			released = CASE WHEN ? IN ('', seen) THEN released ELSE 0 END
		WHERE name = ? AND wanter = ? AND source = ? AND dropped = 0`, reason, seen, seen, seen, want.Name, want.By,
		want.Source)
}

// Drop ends a wanter's wants of images. It queues the job that jobOf returns for each image that
// nobody wants any more.
func (w *Wants) Drop(ctx context.Context, by string, names []string, jobOf func(name string) Job) error {
	var wants []Want
	for _, name := range slices.Sorted(slices.Values(names)) {
		wants = append(wants, Want{Name: name, By: by})
	}
	for batch := range slices.Chunk(wants, wantsPerUpdate) {
		err := w.db.Update(ctx, "drop wants", func(tx database.Session) error {
			if err := lockLooks(ctx, tx, batch); err != nil {
				return err
			}
			for _, want := range batch {
				if err := dropWant(ctx, tx, want, jobOf); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func dropWant(ctx context.Context, tx database.Session, w Want, jobOf func(name string) Job) error {
	if err := tx.Exec(ctx, `UPDATE wants SET dropped = 1, error = '' WHERE name = ? AND wanter = ?`,
		w.Name, w.By); err != nil {
		return err
	}
	unwanted, err := isUnwanted(ctx, tx, w.Name)
	if err != nil || !unwanted {
		return err
	}
	_, err = addJob(ctx, tx, jobOf(w.Name), 0)
	return err
}

// IsUnwanted reports whether all who have wanted an image have dropped it.
func (w *Wants) IsUnwanted(ctx context.Context, name string) (bool, error) {
	return isUnwanted(ctx, w.db.Read, name)
}

func isUnwanted(ctx context.Context, in database.Session, name string) (bool, error) {
	return database.Get(ctx, in, database.Value[bool], `SELECT COUNT(*) > 0 AND COUNT(*) = SUM(dropped)
		FROM wants WHERE name = ?`, name)
}

// Forget removes the dropped wants of an image, unless it has images.
func (w *Wants) Forget(ctx context.Context, name string) error {
	return w.db.Exec(ctx, "forget the wants of "+name, `DELETE FROM wants WHERE name = ? AND dropped = 1
		AND NOT EXISTS (SELECT 1 FROM images WHERE name = ?)`, name, name)
}

// LookJob is the kind of the jobs that look at the source of an image. Their key is the name.
const LookJob = "look"

// forgetWants ends the wants of a name that was removed. Lists go on to want it. So do hooks and
// pull-through if a look at the name's source is due: an event has come meanwhile.
func forgetWants(ctx context.Context, tx database.Session, name string) error {
	if err := tx.Exec(ctx, `DELETE FROM wants WHERE name = ? AND (dropped = 1 OR wanter = ? OR wanter NOT LIKE ?
		AND NOT EXISTS (SELECT 1 FROM jobs WHERE kind = ? AND key = ? AND `+openJob+`))`, name, ByHand,
		ListPrefix+"%", LookJob, name); err != nil {
		return err
	}
	return tx.Exec(ctx, `UPDATE wants SET released = 1 WHERE name = ? AND by_rules = 1 AND wanter LIKE ?`, name,
		ListPrefix+"%")
}
