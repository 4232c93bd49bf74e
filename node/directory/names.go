package directory

import (
	"context"
	"errors"
	"fmt"
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

// found is the answer about one name. It is newer than the list.
type found struct {
	chain string // empty: no hub has the image
	until time.Time
}

// newNames returns names that know only the given images.
func newNames(hub Hub, chains Chains, platform string, known []key, log *slog.Logger) *names {
	n := &names{hub: hub, chains: chains, platform: platform, log: log, all: &folder{}, found: map[string]found{}}
	for _, k := range known {
		n.all.add(k.name, k.chain)
	}
	n.count = len(known)
	return n
}

// folder is one directory of names.
type folder struct {
	folders map[string]*folder
	images  map[string]string // chains, by the last part of the images' names
}

func (f *folder) add(name, chain string) {
	first, rest, more := strings.Cut(name, "/")
	if !more {
		if f.images == nil {
			f.images = map[string]string{}
		}
		f.images[name] = chain
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
	below.add(rest, chain)
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

// chain returns the chain of the image with a name, or "".
func (f *folder) chain(name string) string {
	path, last := "", name
	if i := strings.LastIndex(name, "/"); i >= 0 {
		path, last = name[:i], name[i+1:]
	}
	if in := f.at(path); in != nil {
		return in.images[last]
	}
	return ""
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
	for len(images) > 0 {
		same := 1
		for same < len(images) && images[same].Name == images[0].Name {
			same++
		}
		if chain := choose(images[:same], wanted); chain != "" && isName(images[0].Name) {
			all.add(images[0].Name, chain)
			count++
		}
		images = images[same:]
	}
	return all, count
}

// choose returns the chain of the image that a name stands for: the only one that is ready, or of
// several the best for a platform. It returns "" if there is none.
func choose(images []wire.Image, wanted string) string {
	ready := slices.DeleteFunc(slices.Clone(images), func(i wire.Image) bool {
		return i.State != wire.StateReady || i.Chain == ""
	})
	if len(ready) > 1 {
		ready, _ = platform.Fitting(ready, wanted) // newNames got a platform that is right
	}
	if len(ready) == 0 {
		return ""
	}
	return ready[0].Chain
}

// isName reports whether a name can be a path in the directory: each of its parts is a file name,
// and the whole is in its full form, with a tag or a digest.
func isName(name string) bool {
	ref, err := wire.ParseName(name)
	return err == nil && ref.Name() == name
}

// resolve returns the chain of the image with a name. It asks a hub, unless an answer is fresh. If
// no hub answers, an older answer counts. The error is errMissing if no hub has the image.
func (n *names) resolve(ctx context.Context, name string) (chain string, err error) {
	if !isName(name) {
		return "", errMissing
	}
	chain, fresh, err := n.known(name)
	if !fresh && err == nil && n.isScan(chain) {
		n.refresh(ctx, nameTTL)
		if now, _, err := n.known(name); now != "" && err == nil {
			return now, nil
		}
	}
	if fresh || err != nil {
		return chain, err
	}
	err = n.asks.Join(name, func(ctx context.Context, c *flight.Call) error {
		c.Keep()
		return n.ask(ctx, name)
	}).Wait(ctx)
	if err != nil && chain != "" {
		return chain, nil
	}
	if err != nil {
		return "", err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := n.found[name]; now.chain != "" {
		return now.chain, nil
	}
	if now := n.listedChain(name); now != "" && n.found[name].until.IsZero() {
		return now, nil // a new list has replaced the answer
	}
	return "", errMissing
}

// isScan reports whether somebody looks up many listed names, as `ls -l` does: a new list is then
// better than a request for each name. chain is the chain of a name whose answer is too old, or "".
func (n *names) isScan(chain string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if chain != "" {
		n.old++
	}
	return chain != "" && n.old > maxOld
}

// listedChain returns the chain that the list has for a name, or "". The hub signs which chain a
// manifest has, so a name with a digest is not resolved by the list, which is not signed. n.mu is
// held.
func (n *names) listedChain(name string) string {
	if strings.Contains(name, "@") && !n.listed.IsZero() {
		return ""
	}
	return n.all.chain(name)
}

// known returns what is known of a name without asking. If it is not fresh, a hub should be asked.
func (n *names) known(name string) (chain string, fresh bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	chain = n.listedChain(name)
	fresh = chain != "" && now.Sub(n.listed) < nameTTL
	if f, ok := n.found[name]; ok {
		chain, fresh = f.chain, now.Before(f.until)
	}
	switch {
	case fresh && chain == "":
		return "", true, errMissing
	case fresh:
		return chain, true, nil
	case now.Before(n.retry) && chain != "":
		return chain, true, nil
	case now.Before(n.retry) && !strings.Contains(name, "@"): // a mirror answers about digests alone
		return "", false, n.away
	}
	return chain, false, nil
}

// ask asks a hub for the image with a name, and remembers the answer.
func (n *names) ask(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	chain, err := n.look(ctx, name)
	if err != nil {
		err = fmt.Errorf("look up image %s: %w", name, err)
		n.setAway(err)
		return err
	}
	ttl := nameTTL
	if chain == "" {
		ttl = missingTTL
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.found) >= maxFound {
		clear(n.found)
	}
	n.found[name], n.away = found{chain, time.Now().Add(ttl)}, nil
	return nil
}

// look asks a hub for the image with a name, and returns its chain, or "" if there is none.
func (n *names) look(ctx context.Context, name string) (chain string, err error) {
	ref, err := wire.ParseName(name)
	if err != nil {
		return "", err
	}
	if ref.Digest == "" {
		images, err := n.hub.Images(ctx, name)
		return choose(images, n.platform), err
	}
	chain, err = n.chains.ImageChain(ctx, ref.Digest, ref.NamedRepository())
	if errors.Is(err, chunk.ErrNotFound) {
		return "", nil
	}
	return chain, err
}
