package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lighter/format/chunk"
	"lighter/hub/objects"
)

// journals match the files of the scratch space that list objects which are
// about to be published, until the catalog knows them or they are gone again.
const journals = "journal-*"

// Publish publishes packs and other files, which are on the disk, and then what the
// catalog is to know about them. What it does not know then goes again: all if
// that failed, and what the new takes the place of, by its keys. If the hub is
// ended in between, sweep does it at the next start.
func (s *Service) Publish(ctx context.Context, packs, others []objects.Staged, old []string, publish func() error) error {
	keys := slices.Clone(old)
	for _, f := range slices.Concat(packs, others) {
		keys = append(keys, f.Key)
	}
	journal, err := writeJournal(s.config.Scratch, keys)
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	err = s.publishAll(ctx, packs, others, publish)
	// Whatever ended the work must not end the cleaning.
	cleanErr := s.clean(context.WithoutCancel(ctx), keys)
	if cleanErr == nil {
		cleanErr = os.Remove(journal)
	}
	if cleanErr != nil && err == nil { // the journal stays for the next start
		s.config.Log.Error("clean up after publishing", "cause", cleanErr)
		return nil
	}
	return errors.Join(err, cleanErr)
}

// Drop deletes objects that forget makes the catalog forget, unless it still
// knows them for another reason.
func (s *Service) Drop(ctx context.Context, keys []string, forget func() error) error {
	return s.Publish(ctx, nil, nil, keys, forget)
}

func (s *Service) publishAll(ctx context.Context, packs, others []objects.Staged, publish func() error) error {
	// Nobody else makes the same packs, and they may take long.
	if err := s.objects.Publish(ctx, packs); err != nil {
		return err
	}
	// Of the others one at a time: cleaning up after one must not take what another
	// has just published, of which the catalog does not know yet.
	if err := s.storing.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.storing.Release(1)
	if err := s.objects.Publish(ctx, others); err != nil {
		return err
	}
	return publish()
}

// clean deletes those of the objects that the catalog does not know.
func (s *Service) clean(ctx context.Context, keys []string) error {
	if err := s.storing.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.storing.Release(1)
	return s.deleteUnknown(ctx, keys)
}

// writeJournal writes a journal, which is whole or not there.
func writeJournal(dir string, keys []string) (string, error) {
	file, err := os.CreateTemp(dir, "new-"+journals)
	if err != nil {
		return "", err
	}
	defer os.Remove(file.Name()) // not there any more if all went well
	_, err = file.WriteString(strings.Join(keys, "\n"))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return "", err
	}
	path := filepath.Join(dir, strings.TrimPrefix(filepath.Base(file.Name()), "new-"))
	if err := os.Rename(file.Name(), path); err != nil {
		return "", err
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	return path, errors.Join(d.Sync(), d.Close())
}

// sweep clears the scratch space, and the objects that were published when the
// hub ended before the catalog knew of them. What cannot be cleared stays, with
// its journal, until the next start.
func (s *Service) sweep(ctx context.Context) {
	left, err := os.ReadDir(s.config.Scratch)
	for _, entry := range left {
		path := filepath.Join(s.config.Scratch, entry.Name())
		if journal, _ := filepath.Match(journals, entry.Name()); journal {
			keys, readErr := os.ReadFile(path)
			if cleanErr := cmp.Or(readErr, s.clean(ctx, strings.Fields(string(keys)))); cleanErr != nil {
				err = errors.Join(err, cleanErr)
				continue
			}
		}
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		s.config.Log.Error("clear the scratch space", "cause", err)
	}
}

// deleteUnknown deletes those of the objects of which the catalog does not know.
func (s *Service) deleteUnknown(ctx context.Context, keys []string) error {
	var unknown []string
	for _, key := range keys {
		known, err := s.knows(ctx, key)
		if err != nil {
			return err
		}
		if !known {
			unknown = append(unknown, key)
		}
	}
	return s.objects.Delete(ctx, unknown)
}

// knows tells whether the catalog names an object. It takes what is no name of
// an object for known: nothing is deleted for it.
func (s *Service) knows(ctx context.Context, key string) (bool, error) {
	kind, name, _ := strings.Cut(key, "/")
	id, err := chunk.ParseID(strings.TrimSuffix(name, ".zst"))
	if err != nil {
		return true, nil
	}
	switch kind {
	case "packs":
		if known, err := s.catalog.HasPack(ctx, id); known || err != nil {
			return known, err
		}
		return s.catalog.HasStartupPack(ctx, id)
	case "indexes":
		return s.catalog.HasTree(ctx, id)
	case "locations":
		return s.catalog.HasLocations(ctx, id)
	case "layers":
		known, _, err := s.catalog.HasLayer(ctx, "sha256:"+id.String(), "")
		return known, err
	}
	return true, nil
}
