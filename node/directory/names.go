package directory

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"lighter/format/chunk"
	"lighter/node/flight"
	"lighter/node/platform"
	"lighter/wire"
)

// errMissing says that no hub has an image of a name.
var errMissing = errors.New("no hub has this image")

// names knows what the hubs have: from a list of all images, and from answers about single names.
// It is safe for concurrent use.
type names struct {
	hub      Hub
	chains   Chains
	platform string // that images are chosen for; empty: this machine's
	log      *slog.Logger
	lists    flight.Group[struct{}]
	asks     flight.Group[string] // by name

	mu     sync.Mutex // guards what follows
	all    *folder    // the images of the last list; until there is one, those that this node has
	count  int        // number of images in all
	listed time.Time  // when the list was requested; zero: there was none
	away   error      // why the last request has failed; nil: it has not
	retry  time.Time  // no hub is asked before this time
	old    int        // how often a name was looked up in the list when the list was too old
	found  map[string]found
}

// target is what a name stands for. The zero target is nothing.
type target struct {
	chain    string
	manifest string // its digest; empty if a daemon before this field has listed the image
}

func (t target) isNone() bool { return t.chain == "" }

// found is the answer about one name. It is newer than the list. If it is the zero target, no hub
// has the image.
type found struct {
	target target
	until  time.Time
}

// newNames returns names that know only the given images.
func newNames(hub Hub, chains Chains, platform string, known []key, log *slog.Logger) *names {
	n := &names{hub: hub, chains: chains, platform: platform, log: log, all: &folder{}, found: map[string]found{}}
	for _, k := range known {
		n.all.add(k.name, k.target)
	}
	n.count = len(known)
	return n
}

// folder is one directory of names.
type folder struct {
	folders map[string]*folder
	images  map[string]target // by the last part of the images' names
}

func (f *folder) add(name string, t target) {
	first, rest, more := strings.Cut(name, "/")
	if !more {
		if f.images == nil {
			f.images = map[string]target{}
		}
		f.images[name] = t
		return
	}
	if f.folders == nil {
		f.folders = map[string]*folder{}
	}
	below := f.folders[first]
	if below == nil {
		below = &folder{}
		f.folders[first] = below
	}
	below.add(rest, t)
}

// at returns the folder with a path, or nil.
func (f *folder) at(path string) *folder {
	for part := range strings.SplitSeq(path, "/") {
		if f == nil || path == "" {
			return f
		}
		f = f.folders[part]
	}
	return f
}

// target returns what a name stands for.
func (f *folder) target(name string) target {
	path, last := "", name
	if i := strings.LastIndex(name, "/"); i >= 0 {
		path, last = name[:i], name[i+1:]
	}
	if in := f.at(path); in != nil {
		return in.images[last]
	}
	return target{}
}

// folder returns the folder with a path, or nil. It asks no hub.
func (n *names) folder(path string) *folder {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all.at(path)
}

// state returns the number of listed images, when they were listed, and why no hub answers.
func (n *names) state() (count int, listed time.Time, away error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count, n.listed, n.away
}

// refresh requests a new list if the list is older than maxAge. It waits for the list, but not for
// long if there is an older one.
func (n *names) refresh(ctx context.Context, maxAge time.Duration) {
	n.mu.Lock()
	now := time.Now()
	wait := now.Sub(n.listed) >= maxAge && now.After(n.retry)
	hasOlder := !n.listed.IsZero()
	n.mu.Unlock()
	if !wait {
		return
	}
	if hasOlder {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, listPatience)
		defer cancel()
	}
	_ = n.lists.Join(struct{}{}, n.fetchList).Wait(ctx) // state returns the error
}

func (n *names) fetchList(ctx context.Context, c *flight.Call) error {
	c.Keep()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	began := time.Now()
	images, err := n.hub.AllImages(ctx, maxList)
	if err != nil {
		n.setAway(fmt.Errorf("list the images: %w", err))
		return err
	}
	all, count := listOf(images, n.platform)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all, n.count, n.listed, n.away, n.old = all, count, began, nil, 0
	clear(n.found)
	return nil
}

// setAway notes that no hub answers. It logs that once until a hub answers again.
func (n *names) setAway(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.away == nil {
		n.log.Warn("the directory of images shows what is known: no hub answers", "err", err)
	}
	n.away, n.retry = err, time.Now().Add(awayPause)
}

// listOf makes the folders of a hub's images, which are sorted by name. It leaves out images that
// cannot be mounted.
func listOf(images []wire.Image, wanted string) (all *folder, count int) {
	all = &folder{}
	for image := range Chosen(images, wanted) {
		all.add(image.Name, targetOf(image))
		count++
	}
	return all, count
}

// Chosen yields the image that each name of a hub's list stands for. images are sorted by name.
// Names without an image that can be mounted are left out. wanted is a platform; empty: this
// machine's.
func Chosen(images []wire.Image, wanted string) iter.Seq[wire.Image] {
	return func(yield func(wire.Image) bool) {
		for len(images) > 0 {
			same := 1
			for same < len(images) && images[same].Name == images[0].Name {
				same++
			}
			image := choose(images[:same], wanted)
			if image.Chain != "" && isName(image.Name) && !yield(image) {
				return
			}
			images = images[same:]
		}
	}
}

// choose returns the image that a name stands for: the only one that is ready, or of several the
// best for a platform. It returns none, without a chain, if there is none.
func choose(images []wire.Image, wanted string) (none wire.Image) {
	ready := slices.DeleteFunc(slices.Clone(images), func(i wire.Image) bool {
		return i.State != wire.StateReady || i.Chain == ""
	})
	if len(ready) > 1 {
		ready, _ = platform.Fitting(ready, wanted) // newNames got a platform that is right
	}
	if len(ready) == 0 {
		return none
	}
	return ready[0]
}

// targetOf returns the target of a name that stands for an image.
func targetOf(i wire.Image) target { return target{i.Chain, i.Digest} }

// isName reports whether a name can be a path in the directory: each of its parts is a file name,
// and the whole is in its full form, with a tag or a digest.
func isName(name string) bool {
	ref, err := wire.ParseName(name)
	return err == nil && ref.Name() == name
}

// resolve returns what a name stands for. It asks a hub, unless an answer is fresh. If no hub
// answers, an older answer counts. The error is errMissing if no hub has the image.
func (n *names) resolve(ctx context.Context, name string) (target, error) {
	if !isName(name) {
		return target{}, errMissing
	}
	t, fresh, err := n.known(name)
	if !fresh && err == nil && n.isScan(t) {
		n.refresh(ctx, nameTTL)
		if now, _, err := n.known(name); !now.isNone() && err == nil {
			return now, nil
		}
	}
	if fresh || err != nil {
		return t, err
	}
	err = n.asks.Join(name, func(ctx context.Context, c *flight.Call) error {
		c.Keep()
		return n.ask(ctx, name)
	}).Wait(ctx)
	if err != nil && !t.isNone() {
		return t, nil
	}
	if err != nil {
		return target{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := n.found[name].target; !now.isNone() {
		return now, nil
	}
	if now := n.listedTarget(name); !now.isNone() && n.found[name].until.IsZero() {
		return now, nil // a new list has replaced the answer
	}
	return target{}, errMissing
}

// isScan reports whether somebody looks up many listed names, as `ls -l` does: a new list is then
// better than a request for each name. t is the answer about a name that is too old, if there is
// one.
func (n *names) isScan(t target) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !t.isNone() {
		n.old++
	}
	return !t.isNone() && n.old > maxOld
}

// listedTarget returns what a name stands for in the list. The hub signs which chain a manifest
// has, so a name with a digest is not resolved by the list, which is not signed. n.mu is held.
func (n *names) listedTarget(name string) target {
	if strings.Contains(name, "@") && !n.listed.IsZero() {
		return target{}
	}
	return n.all.target(name)
}

// known returns what is known of a name without asking. If it is not fresh, a hub should be asked.
func (n *names) known(name string) (t target, fresh bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	t = n.listedTarget(name)
	fresh = !t.isNone() && now.Sub(n.listed) < nameTTL
	if f, ok := n.found[name]; ok {
		t, fresh = f.target, now.Before(f.until)
	}
	switch {
	case fresh && t.isNone():
		return t, true, errMissing
	case fresh:
		return t, true, nil
	case now.Before(n.retry) && !t.isNone():
		return t, true, nil
	case now.Before(n.retry) && !strings.Contains(name, "@"): // a mirror answers about digests alone
		return t, false, n.away
	}
	return t, false, nil
}

// ask asks a hub for the image with a name, and remembers the answer.
func (n *names) ask(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	t, err := n.look(ctx, name)
	if err != nil {
		err = fmt.Errorf("look up image %s: %w", name, err)
		n.setAway(err)
		return err
	}
	ttl := nameTTL
	if t.isNone() {
		ttl = missingTTL
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.found) >= maxFound {
		clear(n.found)
	}
	n.found[name], n.away = found{t, time.Now().Add(ttl)}, nil
	return nil
}

// look asks a hub what a name stands for.
func (n *names) look(ctx context.Context, name string) (target, error) {
	ref, err := wire.ParseName(name)
	if err != nil {
		return target{}, err
	}
	if ref.Digest == "" {
		images, err := n.hub.Images(ctx, name)
		return targetOf(choose(images, n.platform)), err
	}
	chain, err := n.chains.ImageChain(ctx, ref.Digest, ref.NamedRepository())
	if errors.Is(err, chunk.ErrNotFound) {
		return target{}, nil
	}
	return target{chain, ref.Digest}, err
}
