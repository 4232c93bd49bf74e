package mount

import (
	"maps"
	"slices"
	"time"

	"lighter/format/chunk"
)

const (
	// closeTimeout bounds how long UnmountIdle waits for reads, closePause is how often it
	// looks whether they are answered.
	closeTimeout = 2 * time.Second
	closePause   = 20 * time.Millisecond
)

// UnmountIdle unmounts everything that nobody works in. The devices stay as long as
// the server does: containers may use them, and the next daemon serves them. Nothing
// is fetched for starts any more, but locations still are, for who reads needs them.
//
// A tree of which reads are not answered after a moment stays mounted too, as one
// that is in use: the kernel would wait for them, so for a hub that says nothing.
func (t *Trees) UnmountIdle() {
	t.endStreams()
	left := t.Mounted()
	for end := time.Now().Add(closeTimeout); ; time.Sleep(closePause) {
		left = slices.DeleteFunc(left, func(m Mounted) bool { return t.unmountIdle(m.Tree) })
		if len(left) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, m := range left {
		t.log.Info("a tree stays mounted", "tree", m.Tree.Short(), "cause", "reads of it wait for the next daemon")
	}
}

// Close has nothing fetched any more. It is called when the devices are not served any
// more: a read that needed other locations would fail.
func (t *Trees) Close() {
	t.endStreams()
	t.newer.end()
	t.mu.Lock()
	all := slices.Collect(maps.Values(t.served))
	t.mu.Unlock()
	for _, m := range all {
		m.locating.end()
	}
}

// unmountIdle unmounts a tree, unless it is busy just now.
func (t *Trees) unmountIdle(tree chunk.ID) (done bool) {
	unlock, free := t.locks.tryLock(tree)
	if !free {
		return false
	}
	defer unlock()
	if t.server.Busy(tree) {
		return false
	}
	if m := t.get(tree); m != nil {
		if err := t.hide(tree, m); err != nil {
			t.log.Info("a tree stays mounted", "cause", err)
		}
	}
	return true
}
