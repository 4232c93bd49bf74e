package ingest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lighter/format/chunk"
	"lighter/hub/objects"
)

// journalName is the file of a staging that lists the objects which are about to
// be published, until the catalog knows them.
const journalName = "journal"

// store publishes files and then what the catalog is to know about them. If that
// fails, what was published goes again; if the hub is ended in between, sweep
// does it at the next start.
func (s *Service) store(ctx context.Context, dir string, files []objects.Staged, publish func() error) error {
	var keys []string
	for _, f := range files {
		keys = append(keys, f.Key)
	}
	// One at a time: cleaning up after one must not take what another has just
	// published, of which the catalog does not know yet.
	if err := s.storing.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.storing.Release(1)
	journal := filepath.Join(dir, journalName)
	if err := writeDurably(journal, strings.Join(keys, "\n")); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	err := s.objects.Publish(ctx, files)
	if err == nil {
		err = publish()
	}
	if err != nil {
		// Whatever ended the work must not end the cleaning.
		return errors.Join(err, s.deleteUnknown(context.WithoutCancel(ctx), keys))
	}
	return nil
}

func writeDurably(path, text string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Sync(), file.Close())
}

// sweep clears the scratch space, and the objects that were published when the
// hub ended before the catalog knew of them.
func (s *Service) sweep(ctx context.Context) error {
	journals, err := filepath.Glob(filepath.Join(s.config.Scratch, "*", journalName))
	if err != nil {
		return fmt.Errorf("clear the scratch space: %w", err)
	}
	for _, journal := range journals {
		keys, err := readLines(journal)
		if err == nil {
			err = s.deleteUnknown(ctx, keys)
		}
		if err != nil {
			return fmt.Errorf("clear the scratch space: %w", err)
		}
	}
	left, err := os.ReadDir(s.config.Scratch)
	if err != nil {
		return fmt.Errorf("clear the scratch space: %w", err)
	}
	for _, entry := range left {
		if err := os.RemoveAll(filepath.Join(s.config.Scratch, entry.Name())); err != nil {
			return fmt.Errorf("clear the scratch space: %w", err)
		}
	}
	return nil
}

func readLines(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var lines []string
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		lines = append(lines, scanner.Text())
	}
	return lines, scanner.Err()
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

// knows tells whether the catalog names an object.
func (s *Service) knows(ctx context.Context, key string) (bool, error) {
	kind, name, _ := strings.Cut(key, "/")
	name = strings.TrimSuffix(name, ".zst")
	if kind == "layers" {
		known, _, err := s.catalog.HasLayer(ctx, "sha256:"+name, "")
		return known, err
	}
	id, err := chunk.ParseID(name)
	if err != nil {
		return true, fmt.Errorf("object %s: %w", key, err)
	}
	if kind == "packs" {
		return s.catalog.HasPack(ctx, id)
	}
	return s.catalog.HasTree(ctx, id)
}
