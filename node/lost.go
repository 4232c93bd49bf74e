package node

import (
	"context"
	"slices"
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

// imagesOf returns the names of images that end with one of the chains.
func (n *Node) imagesOf(ctx context.Context, chains []string) []string {
	names := []string{}
	for _, b := range n.binds.list() {
		if slices.Contains(chains, b.Chain) {
			names = append(names, b.Name)
		}
	}
	if n.snapshot == nil {
		return names
	}
	layers, err := n.snapshot.Layers(ctx)
	if err != nil {
		return names // the chains have to do
	}
	for _, layer := range layers {
		if layer.Image != "" && slices.Contains(chains, layer.Chain) {
			names = append(names, layer.Image)
		}
	}
	return names
}
