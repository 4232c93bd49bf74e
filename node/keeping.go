package node

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"sync"
	"time"

	"lighter/node/mount"
)

// keeperInterval is how often it is looked whether the devices are still kept. A
// daemon that dies within it after its keeper takes its containers' data along.
const keeperInterval = time.Second

// keeping is what is known of who keeps the devices.
type keeping struct {
	note []byte // what was given with them; nil: they never were

	mu    sync.Mutex // guards what follows
	why   string     // nobody does; "": somebody does
	again int64
}

// KeeperStatus says who keeps the devices for the next daemon.
type KeeperStatus struct {
	Who   string `json:"who"`
	Error string `json:"error,omitempty"` // why nobody does: if the daemon ends now, containers get errors
	Again int64  `json:"again"`           // how many times they had to be given to another keeper, as one had ended
}

func (n *Node) keeperStatus() KeeperStatus {
	n.keeping.mu.Lock()
	defer n.keeping.mu.Unlock()
	return KeeperStatus{Who: n.keepers[0].String(), Error: n.keeping.why, Again: n.keeping.again}
}

// watchKeeper sees to it that the devices are kept, until ctx is done: nobody else
// would notice that their keeper was killed, before it is too late.
func (n *Node) watchKeeper(ctx context.Context) {
	tick := time.NewTicker(keeperInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			n.keepAgain(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// keepAgain has the devices kept, if they are not, and says so when that changes.
func (n *Node) keepAgain(ctx context.Context) {
	k := &n.keeping
	given := k.note != nil
	err := n.keepers[0].Holds(ctx, k.note)
	lost := errors.Is(err, fs.ErrNotExist)
	if lost {
		if given {
			n.log.Error("the devices' keeper is gone: another one has to take its place", "cause", err)
		}
		err = n.keep(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	why := ""
	if err != nil {
		why = err.Error()
	}
	k.mu.Lock()
	before := k.why
	k.why = why
	if lost && given && err == nil {
		k.again++
	}
	k.mu.Unlock()
	switch {
	case why == before:
	case err != nil:
		n.log.Error("nobody keeps the devices: when this daemon ends, containers get errors", "cause", err)
	default:
		n.log.Info("the devices are kept", "by", n.keepers[0])
	}
}

// keep gives the connection to the keeper.
func (n *Node) keep(ctx context.Context) error {
	connection, err := mount.Connection(n.config.Root)
	if err != nil {
		return err
	}
	files, err := n.server.Kept()
	if err != nil {
		return err
	}
	defer closeFiles(files)
	k := kept{Version: number(keptVersion), Oldest: number(keptOldest), Mount: connection, State: n.server.State()}
	if len(files) > 1 {
		k.Oldest = max(k.Oldest, journalVersion)
	}
	note, err := json.Marshal(k)
	if err != nil {
		return err
	}
	n.keeping.note = nil
	if err := n.keepers[0].Keep(ctx, files, note); err != nil {
		return err
	}
	n.keeping.note = note
	for _, former := range n.keepers[1:] {
		if err := former.Drop(ctx); err != nil {
			n.log.Warn("a former daemon's keeper still holds the devices", "cause", err)
		}
	}
	return nil
}
