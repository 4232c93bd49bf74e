package mount

import (
	"slices"

	"lighter/format/chunk"
)

// maxEarly bounds the trees that are open before they are mounted. Of more, those
// that have waited longest begin again when they are.
const maxEarly = 16

// early is a tree that is not mounted yet, whose device exists so that what its start
// needs is on its way.
type early struct {
	tree chunk.ID
	m    *served
}

// begin has fetched what the tree's start needs, before anybody has asked for a mount.
func (t *Trees) begin(tree chunk.ID) {
	if t.useLocal(tree) || t.get(tree) != nil || t.hasEarly(tree) {
		return // a local device reads nothing of what would come
	}
	m, err := t.open(tree)
	if err != nil {
		return // who mounts it will see that too, and mend it
	}
	t.mu.Lock()
	known := t.served[tree] != nil || slices.ContainsFunc(t.early, func(e early) bool { return e.tree == tree })
	drop := m
	if !known && !t.ended && m.device.Begin() {
		t.early = append(t.early, early{tree, m})
		drop = nil
		if len(t.early) > maxEarly {
			drop = t.early[0].m
			t.early = slices.Delete(t.early, 0, 1)
		}
	}
	t.mu.Unlock()
	if drop != nil {
		drop.close()
	}
	if !t.Has(tree) { // it was removed meanwhile
		t.dropEarly(tree)
	}
}

func (t *Trees) hasEarly(tree chunk.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.early, func(e early) bool { return e.tree == tree })
}

// takeEarly returns what is open of a tree that is not mounted yet, for whoever asks
// first, or nil.
func (t *Trees) takeEarly(tree chunk.ID) *served {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.early, func(e early) bool { return e.tree == tree })
	if i < 0 {
		return nil
	}
	m := t.early[i].m
	t.early = slices.Delete(t.early, i, i+1)
	return m
}

// dropEarly closes what is open of a tree that will not be mounted, or is by now.
func (t *Trees) dropEarly(tree chunk.ID) {
	if m := t.takeEarly(tree); m != nil {
		m.close()
	}
}

// endStreams ends what is fetched for starts, for good.
func (t *Trees) endStreams() {
	t.mu.Lock()
	before := t.early
	t.early, t.ended = nil, true
	devices := make([]*served, 0, len(t.served))
	for _, m := range t.served {
		devices = append(devices, m)
	}
	t.mu.Unlock()
	for _, e := range before {
		e.m.close()
	}
	for _, m := range devices {
		m.device.EndStream()
	}
}
