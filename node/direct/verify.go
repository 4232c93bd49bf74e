package direct

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/format/layer"
	"lighter/format/layer/audit"
	"lighter/sleep"
	"lighter/store/repository"
)

const (
	// lookEvery is how often the node looks for images whose layers are to be verified.
	lookEvery = 2 * time.Second
	// settleTime is how long an image waits until its layers are verified: its start goes first.
	settleTime = 30 * time.Second
	// maxFailures is after how many failures such an image waits for the next pull.
	maxFailures = 5
)

// retryPauses are the pauses after layers could not be read.
var retryPauses = sleep.Backoff{First: time.Minute, Most: time.Hour, Jitter: 0.5}

// mayStart returns an error if an image must not start from its registry: a layer differs from its
// table, or its repositories are not trusted and a layer was not verified yet.
func (m *Images) mayStart(im image) error {
	unknown, err := m.verdicts.check(im.claims())
	if err != nil {
		return notDirect{err}
	}
	isTrusted := func(p place) bool { return m.trusts(p.Repository) }
	if unknown > 0 && !slices.ContainsFunc(im.Places, isTrusted) {
		m.waiting.add(im.Places[0])
		return errUnverified
	}
	return nil
}

// mayBeVerified returns an error if mayStart will, so that the tables need not be read: the
// repository is not trusted, and a layer was never verified.
func (m *Images) mayBeVerified(p place, im *read) error {
	if m.trusts(p.Repository) {
		return nil
	}
	for i, d := range im.layers {
		if !m.verdicts.has(d.Digest, im.diffIDs[i]) {
			m.waiting.add(p)
			return errUnverified
		}
	}
	return nil
}

// noteWhole remembers that layers of an image have what their tables say: those that were read as a
// whole to make the tables.
func (m *Images) noteWhole(im *image, whole []bool) {
	var found []verdict
	for i, c := range im.claims() {
		if _, known := m.verdicts.of(c); whole[i] && !known {
			found = append(found, verdict{claim: c, Place: im.Places[0], At: time.Now()})
		}
	}
	if len(found) == 0 {
		return
	}
	if err := m.verdicts.add(found...); err != nil { // they are read again after a restart
		m.config.Log.Warn("what was found about layers cannot be saved", "err", err)
	}
}

// attempt says when the layers of an image are verified next.
type attempt struct {
	due      time.Time
	failures int
}

// task is an image whose layers are to be verified.
type task struct {
	places []place
	kept   *image // what was made of it; nil: nothing yet
}

// Verify verifies the layers of images in the background, one at a time, until ctx ends: of trees
// that were made here, and of images that wait for it. wait waits until a number of bytes may be
// fetched in the background.
func (m *Images) Verify(ctx context.Context, wait func(ctx context.Context, bytes int64) error) {
	attempts := map[string]*attempt{}
	for sleep.For(ctx, lookEvery) {
		tasks := m.tasks()
		maps.DeleteFunc(attempts, func(key string, _ *attempt) bool { _, ok := tasks[key]; return !ok })
		for key, t := range tasks {
			a := attempts[key]
			if a == nil {
				a = &attempt{due: time.Now().Add(settleTime)}
				attempts[key] = a
			}
			if time.Now().Before(a.due) || ctx.Err() != nil {
				continue
			}
			if m.try(ctx, t, a.failures, wait) {
				delete(attempts, key)
				continue
			}
			a.failures++
			a.due = time.Now().Add(retryPauses.After(a.failures))
		}
	}
}

// tasks returns the images whose layers are to be verified.
func (m *Images) tasks() map[string]task {
	tasks := map[string]task{}
	for tree, im := range m.kept.images() {
		if unknown, err := m.verdicts.check(im.claims()); err == nil && unknown > 0 {
			tasks[tree.String()] = task{im.Places, &im}
		}
	}
	for _, p := range m.waiting.list() {
		tasks[p.Repository+"@"+p.Manifest.String()] = task{places: []place{p}}
	}
	return tasks
}

// try verifies the layers of an image, and reports whether that is done.
func (m *Images) try(
	ctx context.Context, t task, failures int, wait func(ctx context.Context, bytes int64) error,
) (done bool) {
	p := t.places[failures%len(t.places)]
	err := m.verify(ctx, p, t.kept, wait)
	if ctx.Err() != nil {
		return false
	}
	isDirect := !errors.As(err, new(notDirect))
	if t.kept == nil && (err == nil || !isDirect || failures+1 == maxFailures) {
		m.waiting.remove(p)
		done = true
	}
	if err == nil {
		m.waiting.fail("")
	} else if t.kept != nil || isDirect {
		err = fmt.Errorf("verify the layers of manifest %s in %s: %w", p.Manifest, p.Repository, err)
		m.waiting.fail(err.Error())
		m.config.Log.Warn("the layers of an image cannot be verified now", "err", err)
	}
	return done || err == nil
}

// verify reads tables of an image again, and then the layers about which nothing is known. kept is
// what was made of the image, or nil.
func (m *Images) verify(
	ctx context.Context, p place, kept *image, wait func(ctx context.Context, bytes int64) error,
) error {
	began := time.Now()
	from, err := m.open(p.Repository)
	if err != nil {
		return err
	}
	im, err := readImage(ctx, from, p.Manifest)
	if err != nil {
		return err
	}
	which, made := formats, []claim(nil)
	if kept != nil {
		made = m.unverified(im, kept)
		f := formatOf(kept.Format)
		if f == nil {
			return fmt.Errorf("this version does not know the format %q", kept.Format)
		}
		which = []format{*f}
	}
	layers, claims, err := m.claimsOf(ctx, from, im, which)
	if err != nil {
		return err
	}
	if kept != nil && !slices.Equal(claims, made) {
		return errors.New("the registry has other tables for it now than when its tree was made")
	}
	for i, c := range claims {
		if _, known := m.verdicts.of(c); known {
			continue
		}
		if err := m.verifyLayer(ctx, from, im, i, layers[i], c, wait); err != nil {
			return fmt.Errorf("layer %s: %w", c.Blob, err)
		}
		layers[i] = nil // it is not needed any more, and may be large
	}
	m.config.Log.Info("the layers of an image were read, and compared with their tables", "image", p.Repository,
		"manifest", p.Manifest, "duration", time.Since(began))
	return nil
}

// unverified leaves only those layers in im about which nothing is known. It returns what their
// tables said when kept was made of the image.
func (m *Images) unverified(im *read, kept *image) (claims []claim) {
	all := *im
	im.layers, im.diffIDs = nil, nil
	for i, c := range kept.claims() {
		if _, known := m.verdicts.of(c); known {
			continue
		}
		claims = append(claims, c)
		if i < len(all.layers) { // or the place has another image by now
			im.layers, im.diffIDs = append(im.layers, all.layers[i]), append(im.diffIDs, all.diffIDs[i])
		}
	}
	return claims
}

// claimsOf reads the tables of an image's layers, in the first of the formats that the image has,
// and returns what they say.
func (m *Images) claimsOf(
	ctx context.Context, from *repository.Repository, im *read, which []format,
) (layers []*mapped, claims []claim, err error) {
	err = notDirect{errors.New("its format has no tables")}
	for _, f := range which {
		if f.tables == nil {
			continue
		}
		if layers, err = f.tables(ctx, m, from, im); !errors.As(err, new(notDirect)) {
			break
		}
	}
	if err != nil {
		return nil, nil, err
	}
	for i, l := range layers {
		table, err := audit.Sum(l.Source())
		if err != nil {
			return nil, nil, err
		}
		claims = append(claims, claim{im.layers[i].Digest, im.diffIDs[i], table})
	}
	return layers, claims, nil
}

// verifyLayer reads a layer, and remembers what was found. The error says why it was not read.
func (m *Images) verifyLayer(
	ctx context.Context, from *repository.Repository, im *read, i int, l *mapped, c claim,
	wait func(ctx context.Context, bytes int64) error,
) error {
	var err error
	if !l.whole {
		err = m.audit(l, c.DiffID, newPieces(ctx, from, im.layers[i], wait))
	}
	found := verdict{claim: c, Place: place{Repository: from.String(), Manifest: im.digest}, At: time.Now()}
	if wrong := new(audit.DifferenceError); errors.As(err, &wrong) {
		found.Wrong = wrong.Error()
		m.config.Log.Error("a layer differs from its table or its image's config: no image with this table is "+
			"mounted again", "image", from.String(), "manifest", im.digest, "layer", c.Blob, "diffID", c.DiffID,
			"err", err)
	} else if err != nil {
		return err
	}
	return m.verdicts.add(found)
}

// audit compares a layer's blob with what its table and its config say.
func (m *Images) audit(l *mapped, diffID digest.Digest, blob *pieces) error {
	id, err := chunk.ParseID(diffID.Encoded())
	if err != nil {
		return fmt.Errorf("diffID %s: %w", diffID, err)
	}
	file, err := os.CreateTemp(m.kept.dir, newPrefix+"*")
	if err != nil {
		return err
	}
	defer file.Close() // it has no name
	n, err := l.Table.WriteTo(file)
	if err = errors.Join(err, os.Remove(file.Name())); err != nil {
		return err
	}
	table, err := layer.OpenTable(file, n)
	if err != nil {
		return err
	}
	return audit.Read(blob, audit.Claims{DiffID: id, Source: l.Source(), Table: table, Hides: l.hides},
		inflated(blob.blob.Size))
}
