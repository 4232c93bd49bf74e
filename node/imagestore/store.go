package imagestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"lighter/node/directory"
	"lighter/node/imageconfig"
	"lighter/node/layerblob"
	"lighter/sleep"
	"lighter/wire"
	"lighter/wire/pattern"
)

// Hub knows images.
type Hub interface {
	AllImages(ctx context.Context, limit int64) ([]wire.Image, error)
	Manifest(ctx context.Context, digest string) (*wire.Manifest, error)
}

// Contents gets the verified manifest and config of an image (imageconfig.Reader).
type Contents interface {
	Image(ctx context.Context, image wire.Image) (imageconfig.Image, error)
}

// Config is the configuration of a Store. All fields are required.
type Config struct {
	Dir      string        // where the store is
	Patterns []string      // of repositories; images of others are not listed
	Refresh  time.Duration // pause between two looks at the hubs' images
	Hub      Hub
	Contents Contents
	Layers   *layerblob.Reader
	// Used returns the chains whose trees the node has mounted for the store.
	Used func() map[string]bool
	Log  *slog.Logger
}

// Store is the image store of one node. It is safe for concurrent use.
type Store struct {
	config Config
	dir    string // Config.Dir without symbolic links
	synced bool   // all files of layers and images are durable; of Open, then of Run's goroutine
	// told says that the locks have changed since the lists did; of Open, then of Run's goroutine.
	// It is false at the start: the previous daemon may have been killed in between.
	told bool
	// failed has the names of missing images, and how often each could not be fetched; of Run's
	// goroutine.
	failed map[string]int
	// unnamed has the images that got no name; of Run's goroutine.
	unnamed unnamed

	life  context.Context // of streams
	end   context.CancelFunc
	tasks sync.WaitGroup // streams
	turns turns

	mu      sync.Mutex // guards what follows; only the goroutine of Run replaces list
	list    *list      // never changed, only replaced
	status  Status
	streams map[uint32]int // open ones, by user
}

// Status is the state of a store.
type Status struct {
	Dir     string    `json:"dir"`
	Images  int       `json:"images"`           // listed images
	Gone    int       `json:"gone"`             // of these: images that the hubs do not have any more
	Layers  int       `json:"layers"`           // listed layers
	Listed  time.Time `json:"listed,omitzero"`  // when the hubs' images were last looked at; zero: not since the start
	Away    string    `json:"away,omitempty"`   // why no hub answers now
	Failed  string    `json:"failed,omitempty"` // why the store does not have what the hubs have
	Skipped int       `json:"skipped"`          // the hubs' images that are not listed for this reason
}

// Open opens a store, and makes it if needed. The tools can use it when Open has returned.
func Open(c Config) (*Store, error) {
	if err := Create(c.Dir); err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("resolve the path of the image store: %w", err)
	}
	s := &Store{config: c, dir: dir, turns: turns{taken: map[uint32]int{}}, streams: map[uint32]int{},
		status: Status{Dir: c.Dir}}
	s.life, s.end = context.WithCancel(context.Background())
	if s.list, err = readList(dir); err != nil {
		c.Log.Error("cannot read the list of the image store: it is made again", "err", err)
	}
	// Files that do not fit the list are replaced. The store may be read already.
	if err := s.publish(context.Background(), s.list); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends the reading of layers.
func (s *Store) Close() error {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	s.tasks.Wait()
	return nil
}

// HasChain implements directory.Links.
func (s *Store) HasChain(chain string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list.tops[chain]
}

// Status returns the state of the store.
func (s *Store) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Run keeps the store up to date until ctx is done.
func (s *Store) Run(ctx context.Context) {
	s.check()
	for ctx.Err() == nil {
		err := s.update(ctx)
		s.mu.Lock()
		if err != nil && ctx.Err() == nil && s.status.Failed != err.Error() {
			s.config.Log.Warn("the image store does not have all images of the hubs", "store", s.dir, "err", err)
		}
		s.status.Failed = ""
		if err != nil {
			s.status.Failed = err.Error()
		}
		s.mu.Unlock()
		sleep.For(ctx, s.config.Refresh)
	}
}

// check examines all files of the list. Layers are repaired. Images with a damaged file are
// forgotten, so that they are fetched again.
func (s *Store) check() {
	l := s.copyList()
	for _, y := range l.Layers {
		if err := writeLayer(s.dir, y.ID, l.chains[y.ID]); err != nil {
			s.config.Log.Error("cannot repair a layer of the image store", "layer", y.ID, "err", err)
		}
	}
	l.Images = slices.DeleteFunc(l.Images, func(k known) bool {
		err := checkImage(s.dir, &k.image)
		if err != nil {
			s.config.Log.Error("an image of the image store is damaged: it is fetched again", "image", k.ID, "err", err)
		}
		return err != nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = l
}

// copyList returns a copy of the list, which may be changed.
func (s *Store) copyList() *list {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := newList()
	l.Layers = slices.Clone(s.list.Layers)
	for id, chain := range s.list.chains {
		l.chains[id], l.tops[chain] = chain, true
	}
	for _, k := range s.list.Images {
		k.BigDataNames, k.Repositories = slices.Clone(k.BigDataNames), slices.Clone(k.Repositories)
		k.BigDataSizes, k.BigDataDigests = maps.Clone(k.BigDataSizes), maps.Clone(k.BigDataDigests)
		l.Images = append(l.Images, k)
	}
	return l
}

// update lists what the hubs have now. Images are published in batches, so that the first ones can
// be used soon.
func (s *Store) update(ctx context.Context) error {
	listed, more, err := s.wanted(ctx)
	if err != nil {
		return err
	}
	l := s.copyList()
	l.setNames(listed, s.config.Used())
	s.unnamed = s.unnamed.of(listed)
	var cause error
	if more > 0 {
		cause = fmt.Errorf("the hubs have %d images more than the store can list: choose some with image_store_names",
			more)
	}
	failed, tried := map[string]bool{}, map[string]bool{}
	defer func() {
		before := s.failed
		s.failed = map[string]int{}
		for _, i := range s.missing(l, listed, nil) {
			if s.failed[i.Name] = before[i.Name]; failed[i.Name] {
				s.failed[i.Name]++
			}
		}
	}()
	for {
		missing := s.missing(l, listed, tried)
		got := s.fetch(ctx, missing[:min(len(missing), batchSize)])
		for _, name := range got.failed {
			failed[name], tried[name] = true, true
		}
		for _, d := range got.described {
			tried[d.listed.Name] = true
		}
		cause = cmp.Or(cause, got.err)
		if err := s.write(l, got.described); err != nil {
			return err
		}
		l.setNames(listed, s.config.Used())
		s.unnamed.add(l, got.described)
		if err := s.publish(ctx, l); err != nil {
			return err
		}
		left := len(missing) - len(got.described) - len(got.failed)
		s.mu.Lock()
		s.status.Skipped = more + len(failed) + left
		if got.away != nil {
			s.status.Away = got.away.Error()
		}
		s.mu.Unlock()
		if got.away != nil {
			return fmt.Errorf("no hub answers any more, so %d images are missing until a later round: %w",
				len(failed)+left, got.away)
		}
		if left == 0 || ctx.Err() != nil {
			break
		}
		l = s.copyList()
	}
	s.mu.Lock()
	s.status.Listed = time.Now()
	s.mu.Unlock()
	return cause
}

// wanted returns the hubs' images for the store, one for each name, and how many more there are.
func (s *Store) wanted(ctx context.Context) (listed []wire.Image, more int, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	all, err := s.config.Hub.AllImages(ctx, maxList)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Away = ""
	if err != nil {
		err = fmt.Errorf("list the images: %w", err)
		s.status.Away = err.Error()
		return nil, 0, err
	}
	for image := range directory.Chosen(all, "") {
		switch {
		case !s.matches(image.Name):
		case len(listed) == maxImages:
			more++
		default:
			listed = append(listed, image)
		}
	}
	return listed, more, nil
}

// matches reports whether a name's repository matches a pattern.
func (s *Store) matches(name string) bool {
	ref, err := wire.ParseName(name)
	return err == nil && slices.ContainsFunc(s.config.Patterns,
		func(p string) bool { return pattern.Match(p, ref.NamedRepository()) })
}

// write writes the files of new images, and adds the images to a list.
func (s *Store) write(l *list, all []description) error {
	s.synced = s.synced && len(all) == 0
	for _, d := range all {
		if slices.ContainsFunc(l.Images, func(k known) bool { return k.ID == d.image.ID }) {
			delete(d.data, manifestKey) // it is another manifest with the same config
		}
		l.add(d)
		for _, y := range d.layer {
			if err := writeLayer(s.dir, y.ID, l.chains[y.ID]); err != nil {
				return fmt.Errorf("write a layer of the image store: %w", err)
			}
		}
		if err := writeImage(s.dir, d.image.ID, d.data); err != nil {
			return fmt.Errorf("write an image of the image store: %w", err)
		}
	}
	return nil
}

// publish writes the files that list what the store has, unless they have this list already.
func (s *Store) publish(ctx context.Context, l *list) (err error) {
	if !s.synced {
		if err := s.sync(); err != nil {
			return err
		}
		s.synced = true
	}
	told := s.told
	s.told = false
	if _, err = replaceJSON(stateFile(s.dir), l); err == nil {
		err = publishOne(ctx, layersLock(s.dir), layersFile(s.dir), append([]layer{}, l.Layers...), told)
	}
	if err == nil {
		err = publishOne(ctx, imagesLock(s.dir), imagesFile(s.dir), l.images(), told)
	}
	if err != nil {
		return fmt.Errorf("write the list of the image store: %w", err)
	}
	s.told = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = l
	s.status.Images, s.status.Layers, s.status.Gone = len(l.Images), len(l.Layers), 0
	for _, k := range l.Images {
		if k.Gone {
			s.status.Gone++
		}
	}
	return nil
}

// publishOne writes a list, and changes its lock if the list has changed, or if its readers may not
// have been told about an earlier change.
func publishOne(ctx context.Context, lockPath, path string, value any, told bool) error {
	held, err := lock(ctx, lockPath)
	if err != nil {
		return err
	}
	changed, err := replaceJSON(path, value)
	if err == nil && (changed || !told) {
		err = held.changed()
	}
	return errors.Join(err, held.unlock())
}

// sync makes all files of the store's file system durable.
func (s *Store) sync() error {
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
}
