package node

import (
	"context"

	"lighter/format/chunk"
)

// reportLost says in the log by name what could not be brought back.
func (n *Node) reportLost(ctx context.Context) {
	for tree, cause := range n.trees.Lost() {
		var chains []string
		for _, statement := range n.chains.Statements() {
			if statement.Tree == tree {
				chains = append(chains, statement.Chain)
			}
		}
		n.log.Error("a tree could not be brought back: who uses it gets errors", "images", n.imagesOf(ctx, chains), "chains", chains, "tree", tree, "cause", cause)
	}
}

// RefusedStatus is a chain that something on this machine holds and whose statement on the
// disk cannot be verified. Its tree stays mounted and served.
type RefusedStatus struct {
	Chain  string     `json:"chain"`
	Trees  []chunk.ID `json:"trees"`  // the one that it names, or, where that is not known, all that it may have named
	Images []string   `json:"images"` // that end with the chain, as far as they were named
	Cause  string     `json:"cause"`
	Hub    string     `json:"hub,omitempty"` // why a hub has given no other statement; empty: none was asked yet
	Mend   string     `json:"mend"`          // what to do
}

// refused names the statements that are refused.
func (n *Node) refused(ctx context.Context) []RefusedStatus {
	all := []RefusedStatus{}
	for _, r := range n.chains.Refused() {
		s := RefusedStatus{Chain: r.Chain, Trees: r.Trees, Cause: r.Cause.Error(), Mend: r.Remedy}
		if r.Hub != nil {
			s.Hub = r.Hub.Error()
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return all
	}
	images := n.imageNames(ctx)
	for i := range all {
		all[i].Images = append([]string{}, images[all[i].Chain]...)
	}
	return all
}

// reportRefused says in the log whose statements are refused.
func (n *Node) reportRefused(ctx context.Context) {
	for _, r := range n.refused(ctx) {
		n.log.Error("a statement is refused: its tree stays mounted and served, and no new pull uses it", "images", r.Images, "chain", r.Chain, "trees", r.Trees, "cause", r.Cause, "mend", r.Mend)
	}
}

// imagesOf returns the names of images that end with one of the chains.
func (n *Node) imagesOf(ctx context.Context, chains []string) []string {
	names, images := []string{}, n.imageNames(ctx)
	for _, chain := range chains {
		names = append(names, images[chain]...)
	}
	return names
}

// imageNames returns the names of the images that end with each chain.
func (n *Node) imageNames(ctx context.Context) map[string][]string {
	names := map[string][]string{}
	for _, b := range n.binds.list() {
		names[b.Chain] = append(names[b.Chain], b.Name)
	}
	if n.snapshot == nil {
		return names
	}
	layers, err := n.snapshot.Layers(ctx)
	if err != nil {
		return names // the chains have to do
	}
	for _, layer := range layers {
		if layer.Image != "" {
			names[layer.Chain] = append(names[layer.Chain], layer.Image)
		}
	}
	return names
}
