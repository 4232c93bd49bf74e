package fsck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

const (
	maxExamples = 5      // of a finding
	maxImages   = 10     // of a finding
	maxLost     = 10_000 // objects that one check repairs; further ones are counted
)

// The remedies.
const (
	remedyRepair = "run lighter fsck --repair"
	remedyBlobs  = "bring the layers back: push the images again, or remove and add them; then run " +
		"lighter fsck --repair"
	remedyRoom = "remove images, or make the hub's disks larger; then run lighter fsck --repair"
	remedyGC   = "run lighter gc, and then lighter fsck --repair"
	remedyDrop = "run lighter fsck --deep --repair: it deletes damaged blobs; then push the images again, " +
		"if it says so"
	remedyBlob  = "push the images again, or remove and add them"
	remedyRows  = "restore the catalog from a backup, and then run lighter fsck --repair"
	remedyMany  = "if this is the right catalog for the bucket, run lighter fsck --repair: it deletes them"
	remedyHeld  = "a backup is being made; run lighter fsck --repair again afterwards"
	remedyLater = "a backup is being made; run lighter fsck --deep --repair again afterwards"
	remedyNames = "push or add the images again; if they were removed, run lighter fsck --repair: it removes " +
		"their names"
	remedyOther  = "the hub did not make them: move or delete them by hand"
	remedyUnread = "restore the registry's files of these repositories, or push their images again"
	// As remedyMany, but for names.
	remedyManyNames = "if this is the right registry for the catalog, " +
		"run lighter fsck --repair --confirm: it removes their names"
)

// Fsck compares all stores, as a job, and returns the result. It reports progress to send. The job
// goes on if ctx ends.
func (c *Checker) Fsck(ctx context.Context, w wire.Fsck, send func(wire.Progress) error) (*wire.Check, error) {
	payload, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	n, err := c.Catalog.Jobs.Add(ctx, catalog.Job{Kind: KindCheck, Key: jobKey, Payload: payload, ByUser: true}, 0)
	if err != nil {
		return nil, err
	}
	c.Jobs.Changed(KindCheck, jobKey)
	if _, err := c.Jobs.AwaitEnd(ctx, KindCheck, jobKey, n, report.NewSender(send)); err != nil {
		return nil, fmt.Errorf("check the stores: %w", err)
	}
	state, err := c.Catalog.Checks.Get(ctx, KindCheck)
	if err != nil {
		return nil, err
	}
	result := &wire.Check{}
	return result, json.Unmarshal(state.Report, result)
}

// checking is one check of all stores.
type checking struct {
	*Checker
	wire.Fsck
	job    *jobs.Running
	result wire.Check
	lost   []lost // at most maxLost
	count  map[catalog.ObjectKind]int64
}

// check is the job of Fsck. If it is interrupted, it begins anew.
func (c *Checker) check(ctx context.Context, j *jobs.Running) error {
	k := &checking{Checker: c, job: j, result: wire.Check{Findings: []wire.Finding{}},
		count: map[catalog.ObjectKind]int64{}}
	if len(j.Payload) > 0 {
		if err := json.Unmarshal(j.Payload, &k.Fsck); err != nil {
			return fmt.Errorf("parse the job: %w", err)
		}
	}
	for _, step := range []func(context.Context) error{
		// Blobs come first, because objects are made again from them. If checkBlobs deletes a
		// damaged blob, the hub reads it from another registry, if it knows one that has the blob.
		k.checkBlobs, k.checkObjects, k.checkNames, k.checkRows,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	state, err := c.Catalog.Checks.Get(ctx, KindCheck)
	if err != nil {
		return err
	}
	state.Objects, state.Bytes = state.Objects+k.result.Objects, state.Bytes+k.result.Bytes
	for _, f := range k.result.Findings {
		state.Errors += f.Count
	}
	if state.Report, err = json.Marshal(k.result); err != nil {
		return err
	}
	return c.Catalog.Checks.Complete(ctx, j.Lease(), KindCheck, state)
}

// checkObjects compares bucket and catalog.
func (k *checking) checkObjects(ctx context.Context) error {
	total, _, err := k.Catalog.Checks.ObjectBytes(ctx)
	if err != nil {
		return err
	}
	progress := k.job.Step("compare", "objects", total)
	unknown := wire.Finding{Problem: "objects that the catalog does not know", Remedy: remedyRepair}
	foreign := wire.Finding{Problem: "files in the bucket that are no objects", Remedy: remedyOther}
	place := ""
	if err := k.compare(ctx, "", func(last string, n int, d *differences) error {
		k.result.Objects += int64(n)
		for _, key := range d.foreign {
			count(&foreign, key)
		}
		if err := k.sweepUnknown(ctx, d.unknown, &unknown); err != nil {
			return err
		}
		for _, l := range d.lost {
			k.lose(l)
		}
		err := k.readObjects(ctx, place, last, d.lost)
		place = last
		progress.Add(n)
		return err
	}); err != nil {
		return err
	}
	if unknown.Remedy == remedyRepair && 2*unknown.Count > k.result.Objects {
		unknown.Remedy = remedyMany
	}
	k.add(unknown)
	k.add(foreign)
	return k.reportLost(ctx)
}

// lose notes a lost object.
func (k *checking) lose(l lost) {
	k.count[l.kind]++
	if len(k.lost) < maxLost {
		k.lost = append(k.lost, l)
	}
}

// count counts a problem in a finding, with examples.
func count(f *wire.Finding, example string) {
	if f.Count++; len(f.Examples) < maxExamples {
		f.Examples = append(f.Examples, example)
	}
}

// add adds a finding to the result, if anything was found. A finding whose problems were all
// repaired gets no remedy.
func (k *checking) add(f wire.Finding) {
	if f.Count == 0 {
		return
	}
	if f.Repaired == f.Count {
		f.Remedy = ""
	}
	k.result.Findings = append(k.result.Findings, f)
}

// sweepUnknown counts unknown objects. It deletes them if the user wants that, unless a backup has
// a hold.
func (k *checking) sweepUnknown(ctx context.Context, keys []string, f *wire.Finding) error {
	for _, key := range keys {
		count(f, key)
	}
	if !k.Repair || len(keys) == 0 {
		return nil
	}
	held, err := k.Catalog.Claims.IsHeld(ctx)
	if err != nil {
		return err
	}
	if held {
		f.Remedy = remedyHeld
		return nil
	}
	if err := k.deleteUnknown(ctx, keys); err != nil {
		return err
	}
	f.Repaired += int64(len(keys))
	return nil
}

// readObjects reads the known objects whose keys are after a key, up to and including last, except
// lost ones. It does nothing unless the user wants objects to be read.
func (k *checking) readObjects(ctx context.Context, after, last string, found []lost) error {
	if !k.Deep {
		return nil
	}
	isLost := map[string]bool{}
	for _, l := range found {
		isLost[l.key] = true
	}
	for p, err := range k.known(ctx, after) {
		if err != nil || p.key > last {
			return err
		}
		if isLost[p.key] {
			continue
		}
		o, _ := parse(p.key)
		why, n, err := k.damage(ctx, o)
		if err != nil {
			return err
		}
		k.result.Bytes += n
		if why != "" {
			k.lose(lost{o, "is damaged: " + why})
		}
	}
	return nil
}

// reportLost repairs lost objects if the user wants that, and reports them by kind.
func (k *checking) reportLost(ctx context.Context) error {
	var failed map[string]error
	if k.Repair && len(k.lost) > 0 {
		var err error
		if failed, err = k.repair(ctx, k.lost, &k.job.Progress); err != nil {
			return err
		}
	}
	for _, kind := range objectKinds {
		f := wire.Finding{Problem: "objects (" + kind.name + ") that are lost or damaged", Remedy: remedyRepair}
		images := map[string]bool{}
		for _, l := range k.lost {
			if l.kind != kind.kind {
				continue
			}
			text := l.key + " " + l.why
			err := failed[l.key]
			switch {
			case errors.Is(err, errUnneeded):
				text += "; " + err.Error()
				if f.Remedy == remedyRepair { // the other remedies come first
					f.Remedy = remedyGC
				}
			case errors.Is(err, errNoRoom):
				text, f.Remedy = text+"; "+err.Error(), remedyRoom
			case err != nil:
				text, f.Remedy = text+"; "+err.Error(), remedyBlobs
			}
			count(&f, text)
			if k.Repair && err == nil {
				f.Repaired++
				continue
			}
			if err := k.imagesOf(ctx, l, images); err != nil {
				return err
			}
		}
		f.Count, f.Images = k.count[kind.kind], slices.Sorted(maps.Keys(images))
		if k.Deep { // without it, damage would not be found again
			f.Remedy = strings.Replace(f.Remedy, "fsck --repair", "fsck --deep --repair", 1)
		}
		k.add(f)
	}
	return nil
}

// imagesOf adds the names of images that need a lost object, until there are maxImages.
func (k *checking) imagesOf(ctx context.Context, l lost, images map[string]bool) error {
	if len(images) >= maxImages {
		return nil
	}
	trees, err := k.treesOf(ctx, l)
	if err != nil {
		return err
	}
	for _, t := range trees {
		names, err := k.Catalog.Repairs.ChainImages(ctx, t.Chain, maxImages-len(images))
		if err != nil {
			return err
		}
		for _, name := range names {
			images[name] = true
		}
		if len(images) >= maxImages {
			return nil
		}
	}
	return nil
}

func (k *checking) treesOf(ctx context.Context, l lost) (trees []catalog.TreeOf, err error) {
	diffIDs := []string{}
	if l.kind == catalog.Records {
		diffIDs = append(diffIDs, diffIDOf(l.id))
	} else if trees, err = k.Catalog.Repairs.TreesNaming(ctx, l.id); err != nil {
		return nil, err
	}
	if l.kind == catalog.Packs {
		chunks, err := k.Catalog.Repairs.PackChunks(ctx, l.id)
		if err != nil {
			return nil, err
		}
		layers, err := k.Catalog.Repairs.LayersWith(ctx, numbersOf(chunks))
		if err != nil {
			return nil, err
		}
		diffIDs = slices.Sorted(maps.Keys(layers))
	}
	for _, diffID := range diffIDs {
		some, err := k.Catalog.Repairs.TreesWith(ctx, diffID)
		if err != nil {
			return nil, err
		}
		trees = append(trees, some...)
	}
	return trees, nil
}

func numbersOf(chunks []catalog.PlacedChunk) []int64 {
	numbers := make([]int64, len(chunks))
	for i, k := range chunks {
		numbers[i] = k.N
	}
	slices.Sort(numbers)
	return numbers
}

// checkBlobs checks that the hub's registry stores the blobs of ready images, knows another
// registry that has them, or need not have them (keep_blobs). It does not ask other registries.
// With Deep it reads the stored blobs. With both Deep and Repair it deletes damaged ones, so that
// they can be pushed again, or the hub can read them from the registry that they came from. While a
// backup has a hold, it deletes none. A blob of several images is counted once, or twice if its
// deletion is a repair for some of them only.
func (k *checking) checkBlobs(ctx context.Context) error {
	progress := k.job.Step("compare", "blobs", 0)
	f := wire.Finding{Problem: "blobs of images that the registry lacks, cannot read, or has with other bytes",
		Remedy: remedyBlob}
	images := map[string]bool{}
	var last catalog.ImageBlob
	var size int64                // of the stored blob, -1 if it is not stored, or not any more
	var unread error              // why the registry cannot read it
	var why string                // why the blob is or was damaged; empty: no damage was found
	var reported, repaired string // digests of the blobs that were last counted as a problem, and as repaired
	problem := func(b catalog.ImageBlob, text string) {
		if reported != b.Digest {
			count(&f, b.Digest+text)
		}
		reported = b.Digest
	}
	for {
		blobs, err := k.Catalog.Repairs.ImageBlobs(ctx, last, knownBatch)
		if err != nil {
			return err
		}
		for _, b := range blobs {
			if b.Digest != last.Digest {
				if size, unread = k.storedSize(ctx, b.Digest); unread != nil {
					if err := k.transient(ctx, unread); err != nil {
						return err
					}
				}
				k.result.Blobs++
				if size, why, err = k.checkBlob(ctx, b.Digest, size); err != nil {
					return err
				}
			}
			last = b
			has := size
			if has < 0 && unread == nil {
				if has, err = k.upstreamSize(ctx, b); err != nil {
					return err
				}
			}
			switch {
			case unread != nil:
				problem(b, " cannot be read: "+unread.Error())
			case has == b.Size && size < 0 && why != "":
				if repaired != b.Digest {
					count(&f, b.Digest+" was damaged: "+why)
					f.Repaired++
				}
				repaired = b.Digest
				continue
			case why != "" && size < 0:
				problem(b, " was damaged: "+why+"; it was deleted, so that it can be pushed again")
			case why != "":
				problem(b, " is damaged: "+why)
				if f.Remedy, err = k.remedyOfDamage(ctx); err != nil {
					return err
				}
			case has == b.Size:
				continue
			case has < 0:
				problem(b, " is missing")
			default:
				problem(b, fmt.Sprintf(" has %d bytes, want %d", has, b.Size))
				if size >= 0 { // the registry has it: a push would find that it exists
					if f.Remedy, err = k.remedyOfDamage(ctx); err != nil {
						return err
					}
				}
			}
			if len(images) < maxImages {
				images[b.Image] = true
			}
		}
		progress.Add(len(blobs))
		if len(blobs) < knownBatch {
			break
		}
	}
	f.Images = slices.Sorted(maps.Keys(images))
	k.add(f)
	return nil
}

// remedyOfDamage returns what to do about damaged blobs that the registry still has.
func (k *checking) remedyOfDamage(ctx context.Context) (string, error) {
	if !k.Repair {
		return remedyDrop, nil
	}
	held, err := k.Catalog.Claims.IsHeld(ctx)
	if held {
		return remedyLater, err
	}
	return remedyDrop, err
}

// checkBlob reads a stored blob if the user wants that, and says what is wrong with it. It returns
// the blob's size, or -1 if the blob is not stored, or was deleted because it was damaged.
func (k *checking) checkBlob(ctx context.Context, digest string, stored int64) (size int64, why string, err error) {
	if !k.Deep || stored <= 0 { // not stored, or not readable
		return stored, "", nil
	}
	why, n, err := k.readBlob(ctx, digest)
	k.result.Bytes += n
	if why == "" || err != nil || !k.Repair {
		return stored, why, err
	}
	dropped, err := k.Registry.DropCorrupt(ctx, digest)
	if dropped {
		stored = -1
	}
	return stored, why, err
}

// storedSize returns the size of a blob that the registry stores, or -1.
func (k *checking) storedSize(ctx context.Context, digest string) (int64, error) {
	size, err := away.Retry(ctx, k.isAway, func() (int64, error) { return k.Registry.BlobSize(ctx, digest) })
	if errors.Is(err, registry.ErrNotFound) {
		return -1, nil
	}
	return size, err
}

// upstreamSize returns the size of a blob that the registry need not store, because another
// registry has the blob, or because the hub deletes layers after ingestion (keep_blobs). For any
// other blob it returns -1.
func (k *checking) upstreamSize(ctx context.Context, b catalog.ImageBlob) (int64, error) {
	ref, err := wire.ParseName(b.Image)
	if err != nil {
		return 0, err
	}
	from := k.Registry.Repository(ref.Repository)
	size, err := from.UpstreamSize(ctx, b.Digest)
	if errors.Is(err, registry.ErrNotFound) {
		if from.IsReleased(ctx, b.Digest) {
			return b.Size, nil
		}
		return -1, nil
	}
	return size, err
}

// checkRows checks the catalog itself.
func (k *checking) checkRows(ctx context.Context) error {
	k.job.Step("check", "catalog", 0)
	found, err := k.Catalog.Checks.Inconsistencies(ctx)
	if err != nil {
		return err
	}
	for _, what := range slices.Sorted(maps.Keys(found)) {
		k.add(wire.Finding{Problem: "catalog: " + what, Count: found[what], Remedy: remedyRows})
	}
	return nil
}
