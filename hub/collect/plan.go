package collect

import (
	"context"
	"slices"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/wire"
)

// Plan returns what a run would do now. It changes nothing. The error is report.ErrBusy while
// another call of Plan works.
func (c *Collector) Plan(ctx context.Context) (*wire.Collection, error) {
	if !c.planning.TryLock() {
		return nil, report.ErrBusy
	}
	defer c.planning.Unlock()
	trees, err := c.Catalog.Garbage.ForeseeTrees(ctx, c.Delay, c.Holders.Age())
	if err != nil {
		return nil, err
	}
	lineage, err := c.Catalog.Garbage.Lineage(ctx)
	if err != nil {
		return nil, err
	}
	plan := &wire.Collection{At: time.Now().UTC(), DryRun: true}
	for _, t := range trees {
		plan.Unserved = append(plan.Unserved, c.describe(t))
		if !t.Dead {
			continue
		}
		plan.Trees++
		delete(lineage.Trees, t.Tree)
	}
	_, plan.Bytes = deadOf(trees)
	dead := deadLayers(lineage, plan)
	marks, err := c.Catalog.Garbage.MarkChunks(ctx, dead)
	if err != nil {
		return nil, err
	}
	gone, sparse, err := c.suspects(ctx, marks)
	if err != nil {
		return nil, err
	}
	for _, p := range gone {
		plan.Packs++
		plan.PackBytes += p.Size
		plan.Bytes += p.Size
	}
	for _, p := range sparse {
		if p.isWorth() {
			plan.Rewritten++
			plan.Bytes += p.dead
		} else {
			plan.DeadBytes += p.dead
		}
	}
	deleted, err := c.Blobs.Plan(ctx)
	addBlobs(plan, deleted)
	return plan, err
}

// describe says why a tree without an image goes or stays.
func (c *Collector) describe(t catalog.UnservedTree) wire.Unserved {
	u := wire.Unserved{Tree: t.Tree.String(), Name: t.Name, Bytes: t.Bytes, Since: t.Since.UTC(), Goes: t.Dead}
	for _, p := range t.Packs {
		u.Bytes += p.Size
	}
	switch {
	case t.Dead:
		u.Why = "no image has it"
	case t.Held:
		u.Why = "a node or a mirror holds it"
	default:
		u.Why = "it lost its last image or holder less than " + c.Delay.String() + " ago"
	}
	return u
}

// deadLayers returns the layers that no chain has any more if only the trees of the lineage stay.
// It adds the numbers of these layers and of the dead chains to the plan.
func deadLayers(l catalog.Lineage, plan *wire.Collection) (dead []string) {
	live := map[string]bool{}
	keep := func(chain string) {
		for chain != "" && !live[chain] {
			live[chain] = true
			chain = l.Chains[chain].Parent
		}
	}
	for chain := range l.Used {
		keep(chain)
	}
	for _, chains := range l.Trees {
		for _, chain := range chains {
			keep(chain)
		}
	}
	layers := map[string]bool{} // whether they are live
	for chain, link := range l.Chains {
		layers[link.DiffID] = layers[link.DiffID] || live[chain]
		if !live[chain] {
			plan.Chains++
		}
	}
	for diffID, isLive := range layers {
		if !isLive {
			dead = append(dead, diffID)
		}
	}
	slices.Sort(dead)
	plan.Layers = int64(len(dead))
	return dead
}
