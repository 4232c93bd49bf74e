package report

import (
	"context"
	"log/slog"

	"lighter/format/chunk"
)

// Refused is a chain in use whose statement on the disk cannot be verified. Its tree stays
// mounted and served.
type Refused struct {
	Chain  string     `json:"chain"`
	Trees  []chunk.ID `json:"trees"`  // the tree that the statement names, or all trees that it may name
	Images []string   `json:"images"` // names of the images whose top chain this is, as far as they are known
	Cause  string     `json:"cause"`
	Hub    string     `json:"hub,omitempty"` // why no hub has given another statement; empty: no hub was asked yet
	Repair string     `json:"repair"`        // what an administrator can do
}

// refused returns the statements that are refused.
func (r *Reporter) refused(ctx context.Context) []Refused {
	all := []Refused{}
	for _, found := range r.Chains.Refused() {
		refused := Refused{Chain: found.Chain, Trees: found.Trees, Cause: found.Cause.Error(), Repair: found.Remedy}
		if found.Hub != nil {
			refused.Hub = found.Hub.Error()
		}
		all = append(all, refused)
	}
	if len(all) == 0 {
		return all
	}
	images := r.imageNames(ctx)
	for i := range all {
		all[i].Images = append([]string{}, images[all[i].Chain]...)
	}
	return all
}

// LogProblems logs the trees that could not be recovered, and the trees and statements that are
// refused.
func (r *Reporter) LogProblems(ctx context.Context, log *slog.Logger) {
	for tree, err := range r.Trees.Lost() {
		var chains []string
		for _, statement := range r.Chains.Statements() {
			if statement.Tree == tree {
				chains = append(chains, statement.Chain)
			}
		}
		log.Error("a tree could not be recovered: containers that use it get errors",
			"tree", tree, "chains", chains, "images", r.imagesOf(ctx, chains), "err", err)
	}
	for tree, err := range r.Direct.Wrong() {
		log.Error("a tree is never mounted again: a layer differs from its table", "tree", tree, "err", err)
	}
	for _, refused := range r.refused(ctx) {
		log.Error("a statement is refused: its tree stays mounted and served, and no new pull uses the statement",
			"chain", refused.Chain, "trees", refused.Trees, "images", refused.Images,
			"err", refused.Cause, "repair", refused.Repair)
	}
}

// imagesOf returns the names of the images whose top chain is one of the chains.
func (r *Reporter) imagesOf(ctx context.Context, chains []string) []string {
	names, images := []string{}, r.imageNames(ctx)
	for _, chain := range chains {
		names = append(names, images[chain]...)
	}
	return names
}

// imageNames returns the names of images by their top chain. Images whose names cannot be read are
// missing.
func (r *Reporter) imageNames(ctx context.Context) map[string][]string {
	names := map[string][]string{}
	for _, b := range r.Binds.List() {
		names[b.Chain] = append(names[b.Chain], b.Name)
	}
	layers, err := r.Snapshots.Layers(ctx)
	if err != nil {
		return names
	}
	for _, layer := range layers {
		if layer.Image != "" {
			names[layer.Chain] = append(names[layer.Chain], layer.Image)
		}
	}
	return names
}
