// Package publish makes objects and the catalog's rows about them appear together, or not at all.
//
// Publishing has two phases: the objects are stored, then the catalog commits. Before that, a
// journal in the scratch directory lists the objects. Afterwards the publisher deletes the listed
// objects that the catalog does not know: all of them if the commit has failed. If the process ends
// too early, Recover does that at the next start. Delete works the same way, with a commit that
// makes the catalog forget objects.
package publish

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/semaphore"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/objects"
)

// Catalog says which objects are known. The hub's catalog implements it.
type Catalog interface {
	HasPack(ctx context.Context, id chunk.ID) (bool, error)
	HasTree(ctx context.Context, tree chunk.ID) (bool, error)
	HasLocations(ctx context.Context, id chunk.ID) (bool, error)
	HasLayer(ctx context.Context, diffID, digest string) (layer, blob bool, err error)
}

var _ Catalog = (*catalog.Catalog)(nil)

// Publisher publishes and deletes objects. It is safe for concurrent use.
type Publisher struct {
	catalog Catalog
	objects *objects.Store
	scratch string
	log     *slog.Logger
	// commits is held while shared objects are stored and the catalog commits, and while objects
	// are deleted.
	commits *semaphore.Weighted
}

// New returns a publisher. scratch is a directory of its own on the file system of the objects.
func New(c Catalog, o *objects.Store, scratch string, log *slog.Logger) *Publisher {
	return &Publisher{catalog: c, objects: o, scratch: scratch, log: log, commits: semaphore.NewWeighted(1)}
}

// TempDir makes a directory for files that become objects. The caller removes it; Recover removes
// those that are left. kind is part of its name.
func (p *Publisher) TempDir(kind string) (string, error) {
	dir, err := os.MkdirTemp(p.scratch, kind+"-")
	if err != nil {
		return "", fmt.Errorf("make a scratch directory: %w", err)
	}
	return dir, nil
}

// Objects are the objects of one publication. The files are synced to the disk.
type Objects struct {
	Packs    []objects.Staged // no other publication has the same ones
	Others   []objects.Staged // indexes, locations and layer records
	Replaced []string         // keys of objects to delete if the catalog does not know them afterwards
}

// Publish stores objects and calls commit, which makes the catalog know them. Afterwards it
// deletes those that the catalog does not know: all if storing or commit failed, otherwise the
// replaced ones.
func (p *Publisher) Publish(ctx context.Context, o Objects, commit func() error) error {
	keys := slices.Clone(o.Replaced)
	for _, f := range slices.Concat(o.Packs, o.Others) {
		keys = append(keys, f.Key)
	}
	journal, err := writeJournal(p.scratch, keys)
	if err != nil {
		return fmt.Errorf("write the publication journal: %w", err)
	}
	err = p.store(ctx, o, commit)
	cleanErr := p.deleteUnknown(context.WithoutCancel(ctx), keys)
	if cleanErr == nil {
		cleanErr = os.Remove(journal)
	}
	if cleanErr != nil && err == nil { // the journal stays for the next start
		p.log.Error("delete unpublished objects", "err", cleanErr)
		return nil
	}
	return errors.Join(err, cleanErr)
}

// Delete calls forget, which makes the catalog forget objects, and deletes them, except those that
// the catalog knows for another reason.
func (p *Publisher) Delete(ctx context.Context, keys []string, forget func() error) error {
	return p.Publish(ctx, Objects{Replaced: keys}, forget)
}

func (p *Publisher) store(ctx context.Context, o Objects, commit func() error) error {
	// Packs are not shared and may take long, so they need no lock.
	if err := p.objects.Publish(ctx, o.Packs); err != nil {
		return err
	}
	// Two publications may store the same index, locations or record. Without the lock, one that
	// fails could delete what the other has stored and not committed yet.
	if err := p.commits.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.commits.Release(1)
	if err := p.objects.Publish(ctx, o.Others); err != nil {
		return err
	}
	return commit()
}

// deleteUnknown deletes those of the objects that the catalog does not know.
func (p *Publisher) deleteUnknown(ctx context.Context, keys []string) error {
	if err := p.commits.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.commits.Release(1)
	var unknown []string
	for _, key := range keys {
		known, err := p.knows(ctx, key)
		if err != nil {
			return err
		}
		if !known {
			unknown = append(unknown, key)
		}
	}
	return p.objects.Delete(ctx, unknown)
}

// knows reports whether the catalog names an object. A key of no known form counts as known, so
// that it is not deleted.
func (p *Publisher) knows(ctx context.Context, key string) (bool, error) {
	kind, name, _ := strings.Cut(key, "/")
	id, err := chunk.ParseID(strings.TrimSuffix(name, ".zst"))
	if err != nil {
		return true, nil
	}
	switch kind {
	case "packs":
		return p.catalog.HasPack(ctx, id)
	case "indexes":
		return p.catalog.HasTree(ctx, id)
	case "locations":
		return p.catalog.HasLocations(ctx, id)
	case "layers":
		known, _, err := p.catalog.HasLayer(ctx, "sha256:"+id.String(), "")
		return known, err
	}
	return true, nil
}

// Recover empties the scratch directory and deletes the objects of publications that the previous
// process did not finish. A journal stays until the next start if its objects cannot be deleted.
func (p *Publisher) Recover(ctx context.Context) {
	entries, err := os.ReadDir(p.scratch)
	for _, entry := range entries {
		path := filepath.Join(p.scratch, entry.Name())
		if isJournal, _ := filepath.Match(journalPattern, entry.Name()); isJournal {
			keys, readErr := os.ReadFile(path)
			if cleanErr := cmp.Or(readErr, p.deleteUnknown(ctx, strings.Fields(string(keys)))); cleanErr != nil {
				err = errors.Join(err, cleanErr)
				continue
			}
		}
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		p.log.Error("clear the scratch directory", "err", err)
	}
}

// journalPattern matches the names of journals in the scratch directory.
const journalPattern = "journal-*"

// writeJournal writes a journal durably and returns its path. After an error or a crash there is
// either a whole journal or none.
func writeJournal(dir string, keys []string) (string, error) {
	path := filepath.Join(dir, strings.TrimSuffix(journalPattern, "*")+rand.Text())
	return path, durable.Replace(path, []byte(strings.Join(keys, "\n")))
}
