// Package wants knows who wants which image of other registries, and keeps these images as their
// sources have them.
//
// A wanter is a person, a list, a hook, or a pull that went through the hub. The package promises
// that an image stays as long as one wanter wants it, and goes when nobody does. Images that were
// pushed or added by hand are wanted by hand. Look and Drop return when the catalog has the
// request, so that it is not lost. Requests may be repeated, and come in any order: each one only
// makes a job ask the source's registry for the truth (look.go). A request that comes while the job
// runs makes it run once more.
//
// The package fetches nothing that the hub has: an image whose source has not moved costs one HEAD
// request. If the registry has no such image any more, and answers so twice, then those wants end
// whose wanters may remove images. After any other error, everything stays.
//
// Hazards: if two wanters name different sources of one image, it has the contents of the source
// that moved last. If a person adds an image at the moment when its removal begins, it is removed.
package wants

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/images"
	"lighter/hub/jobs"
	"lighter/hub/pull"
	"lighter/hub/report"
	"lighter/sleep"
	"lighter/wire"
)

// Wish is an image that a wanter wants.
type Wish struct {
	Source    string   // docker://HOST/REPO:TAG, or with @DIGEST
	Name      string   // of the image in the hub; empty: its name in Source
	By        string   // List or Hook
	PlainHTTP bool     // plain HTTP is allowed for the source
	Platforms []string // OS/ARCH; empty: those of the hub's configuration
	MayRemove bool     // the want ends when the source no longer has the image
	ByRules   bool     // retention rules may remove the image
}

// List returns the wanter that is the list of a name.
func List(name string) string { return catalog.ListPrefix + name }

// Hook returns the wanter that is the hook of a name.
func Hook(name string) string { return catalog.HookPrefix + name }

// Images fetches images of other registries. Package images has them.
type Images interface {
	Queue(ctx context.Context, f images.Fetch, from *pull.Source) (digest string, err error)
}

// Names removes names. Package names has them.
type Names interface {
	Remove(ctx context.Context, name string) error
	RemoveIf(ctx context.Context, name string, still func() (bool, error)) (removed bool, err error)
}

// Config has the parts of a hub that a Service uses.
type Config struct {
	Catalog *catalog.Catalog
	Images  Images
	Names   Names
	// Source opens a repository of another registry with the hub's own login for it.
	Source func(ctx context.Context, repository string, plainHTTP bool) (*pull.Source, error)
	// Belongs returns an error that wraps report.ErrInvalid if images of a repository are not to be
	// added here.
	Belongs func(repository string) error
	Log     *slog.Logger
}

// Service keeps the wanted images of a domain. It is safe for concurrent use.
type Service struct {
	// Confirm is the pause before a registry is asked again whether an image is gone. It may be
	// changed before the jobs run.
	Confirm time.Duration

	config Config
	wants  *catalog.Wants
	jobs   *jobs.Queue
}

const (
	looksAtOnce = 8
	lookTries   = 8 // with the pauses below, a source may be away for some hours
	confirm     = 5 * time.Second
)

// New returns a service, and adds its kind of jobs to the queue.
func New(c Config, q *jobs.Queue) *Service {
	s := &Service{Confirm: confirm, config: c, wants: c.Catalog.Wants, jobs: q}
	q.Add(jobs.Kind{Name: catalog.LookJob, AtOnce: looksAtOnce, Tries: lookTries, Run: s.run,
		Pauses: sleep.Backoff{First: 20 * time.Second, Most: time.Hour}})
	return s
}

// Want returns the want of a wish. The error wraps report.ErrInvalid.
func (s *Service) Want(w Wish) (catalog.Want, error) {
	_, name, err := pull.ParseSource(w.Source)
	if err != nil {
		return catalog.Want{}, err
	}
	if w.Name != "" {
		name = w.Name
	}
	ref, err := report.ParseName(name)
	if err != nil {
		return catalog.Want{}, err
	}
	for _, p := range w.Platforms {
		if err := wire.CheckPlatform(p); err != nil {
			return catalog.Want{}, fmt.Errorf("%w: %w", report.ErrInvalid, err)
		}
	}
	if w.By == "" || w.By == catalog.ByHand {
		return catalog.Want{}, fmt.Errorf("%w: %q cannot wish for images", report.ErrInvalid, w.By)
	}
	return catalog.Want{Name: ref.Name(), By: w.By, Source: w.Source, PlainHTTP: w.PlainHTTP, Platforms: w.Platforms,
		MayRemove: w.MayRemove, ByRules: w.ByRules}, s.config.Belongs(ref.Repository)
}

// Look records wishes, and queues a look at the source of each. It returns when the catalog has
// committed them. If one of them is invalid, it records none, and the error wraps
// report.ErrInvalid. Of more than 200 wishes, it may record some and return an error: then the
// caller repeats the call.
func (s *Service) Look(ctx context.Context, wishes ...Wish) error {
	all := make([]catalog.Want, 0, len(wishes))
	for _, w := range wishes {
		want, err := s.Want(w)
		if err != nil {
			return err
		}
		all = append(all, want)
	}
	if err := s.wants.Add(ctx, all, lookJob); err != nil {
		return err
	}
	for _, w := range all {
		s.jobs.Changed(catalog.LookJob, w.Name)
	}
	return nil
}

// Drop ends a wanter's wants of images. It returns when the catalog has committed that. Jobs remove
// the images that nobody wants any more.
func (s *Service) Drop(ctx context.Context, by string, names ...string) error {
	if err := s.wants.Drop(ctx, by, names, lookJob); err != nil {
		return err
	}
	for _, name := range names {
		s.jobs.Changed(catalog.LookJob, name)
	}
	return nil
}

// lookJob returns the job that looks at the source of an image. It has no payload, so that another
// request does not interrupt it: it runs once more afterwards.
func lookJob(name string) catalog.Job { return catalog.Job{Kind: catalog.LookJob, Key: name} }

// Remove removes an image that a person does not want any more. Unless force is true, the error
// wraps report.ErrInvalid if lists or hooks want it, and nothing is changed. With force, the image
// comes back when its list looks again, or its hook gets another event.
func (s *Service) Remove(ctx context.Context, name string, force bool) error {
	ref, err := report.ParseName(name)
	if err != nil {
		return err
	}
	if !force {
		by, err := s.Others(ctx, ref.Name())
		if err != nil {
			return err
		}
		if len(by) > 0 {
			return fmt.Errorf("%w: %s is wanted by %s: take it off there, or remove it with --force; then it comes "+
				"back at their next look", report.ErrInvalid, ref.Name(), strings.Join(by, ", "))
		}
	}
	return s.config.Names.Remove(ctx, name)
}

// Others returns the lists and hooks that want an image.
func (s *Service) Others(ctx context.Context, name string) (by []string, err error) {
	all, err := s.wants.Of(ctx, name)
	for _, w := range all {
		if !w.Dropped && !slices.Contains(catalog.ByUsers, w.By) {
			by = append(by, w.By)
		}
	}
	return by, err
}

// removeUnwanted removes an image that nobody wants any more.
func (s *Service) removeUnwanted(ctx context.Context, name string) error {
	removed, err := s.config.Names.RemoveIf(ctx, name, func() (bool, error) { return s.wants.IsUnwanted(ctx, name) })
	switch {
	case errors.Is(err, catalog.ErrNotFound): // there is no such image
		return s.wants.Forget(ctx, name)
	case err != nil:
		return err
	case removed:
		s.config.Log.Info("image removed: nobody wants it any more", "image", name)
		return s.wants.Forget(ctx, name)
	}
	unwanted, err := s.wants.IsUnwanted(ctx, name)
	if err == nil && unwanted { // another change of the name is in progress
		err = &jobs.RetryError{Err: fmt.Errorf("%s is being changed: its removal waits", name)}
	}
	return err
}
