package takeover

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"sync"
	"time"

	"lighter/node/mount"
	"lighter/sleep"
)

// keeperInterval is the time between two checks that a keeper holds the devices. If keeper and
// daemon both die within this time, containers lose their devices.
const keeperInterval = time.Second

// keeping is the state of the keeper.
type keeping struct {
	note []byte // the note that the keeper got with the connection; nil: it got no connection yet

	mu       sync.Mutex // guards what follows
	failure  string     // why no keeper holds the devices; empty: a keeper holds them
	replaced int64      // number of keepers that ended and were replaced
}

// KeeperStatus says which keeper holds the devices for the next daemon.
type KeeperStatus struct {
	Name     string `json:"name"`
	Error    string `json:"error,omitempty"` // why no keeper holds them: if the daemon ends now, containers get errors
	Replaced int64  `json:"replaced"`        // number of keepers that ended and were replaced
}

// Keeper returns the status of the keeper.
func (d *Devices) Keeper() KeeperStatus {
	d.keeping.mu.Lock()
	defer d.keeping.mu.Unlock()
	return KeeperStatus{Name: d.keepers[0].String(), Error: d.keeping.failure, Replaced: d.keeping.replaced}
}

// WatchKeeper makes sure, until ctx is done, that a keeper holds the devices. Otherwise the death
// of a keeper would be noticed only when the next daemon needs the keeper.
func (d *Devices) WatchKeeper(ctx context.Context) {
	for sleep.For(ctx, keeperInterval) {
		d.keepAgain(ctx)
	}
}

// keepAgain gives the devices to the keeper if it does not hold them, and logs each change.
func (d *Devices) keepAgain(ctx context.Context) {
	k := &d.keeping
	given := k.note != nil
	err := d.keepers[0].Holds(ctx, k.note)
	lost := errors.Is(err, fs.ErrNotExist)
	if lost {
		if given {
			d.log.Error("the keeper of the devices is gone and is replaced", "err", err)
		}
		err = d.keep(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	k.mu.Lock()
	before := k.failure
	k.failure = failure
	if lost && given && err == nil {
		k.replaced++
	}
	k.mu.Unlock()
	switch {
	case failure == before:
	case err != nil:
		d.log.Error("no keeper holds the devices: when this daemon ends, containers get errors", "err", err)
	default:
		d.log.Info("a keeper holds the devices", "keeper", d.keepers[0])
	}
}

// keep gives the connection to the keeper.
func (d *Devices) keep(ctx context.Context) error {
	connection, err := mount.Connection(d.root)
	if err != nil {
		return err
	}
	files, err := d.server.Descriptors()
	if err != nil {
		return err
	}
	defer closeFiles(files)
	n := note{Version: number(keptVersion), Oldest: number(keptOldest), Mount: connection, State: d.server.State()}
	if len(files) > 1 {
		n.Oldest = max(n.Oldest, journalVersion)
	}
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	d.keeping.note = nil
	if err := d.keepers[0].Keep(ctx, files, text); err != nil {
		return err
	}
	d.keeping.note = text
	for _, other := range d.keepers[1:] {
		if err := other.Drop(ctx); err != nil {
			d.log.Warn("a previous daemon's keeper still holds the devices", "err", err)
		}
	}
	return nil
}
