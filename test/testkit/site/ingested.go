package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lighter/test/testkit/workdir"
)

// startHub starts the site's hub. To ingest the images of Options.Ingested takes far longer than
// most tests. So the first site of a program ingests them, and the hubs of later sites start with a
// copy of the result.
func (s *Site) startHub(ctx context.Context) error {
	work, err := workdir.Path()
	if err != nil {
		return err
	}
	for _, name := range s.options.Ingested {
		if err := s.Push(ctx, filepath.Join(work, "images", name), name); err != nil {
			return err
		}
	}
	kept := s.ingestedDir()
	if _, err := os.Stat(kept); kept != "" && err == nil {
		if err := s.copyTree(ctx, kept, filepath.Join(s.Dir, hubName)); err != nil {
			return err
		}
		s.Hub, err = s.launchHub(ctx, hubName, hubAddress)
		return err
	}
	if s.Hub, err = s.launchHub(ctx, hubName, hubAddress); err != nil {
		return err
	}
	for _, name := range s.options.Ingested {
		if err := s.Hub.Add(ctx, name); err != nil {
			return err
		}
	}
	if kept == "" {
		return nil
	}
	unfinished := kept + ".new"
	if err := errors.Join(s.Hub.process.stop(), os.MkdirAll(filepath.Dir(kept), 0o700),
		s.copyTree(ctx, s.Hub.Root, unfinished), os.Rename(unfinished, kept)); err != nil {
		return err
	}
	return s.Hub.Restart(ctx)
}

// ingestedDir returns the directory with a copy of the directory of a hub that has the images of
// Options.Ingested. It is empty if there are no such images, or the hub is not like other hubs.
func (s *Site) ingestedDir() string {
	o := &s.options
	if len(o.Ingested) == 0 || len(o.HubArgs) > 0 || o.HubConfig != "" || o.Hub != "" || o.Domain != "" {
		return ""
	}
	return filepath.Join(enclosure, "ingested", strings.Join(slices.Sorted(slices.Values(o.Ingested)), "+"))
}

// copyTree copies a directory to a name that does not exist. Files share their bytes if the file
// system can do that.
func (s *Site) copyTree(ctx context.Context, from, to string) error {
	if _, err := s.command(ctx, "cp", "-a", "--reflink=auto", from, to); err != nil {
		return fmt.Errorf("copy the directory of a hub: %w", err)
	}
	return nil
}
