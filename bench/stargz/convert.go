package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/converter"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/platforms"
	"github.com/containerd/stargz-snapshotter/estargz"
	toestargz "github.com/containerd/stargz-snapshotter/nativeconverter/estargz"
	tozstdchunked "github.com/containerd/stargz-snapshotter/nativeconverter/zstdchunked"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Kinds of converted images.
const (
	estargzKind     = "estargz"
	zstdchunkedKind = "zstdchunked"
)

type convertOptions struct {
	kind                string
	traces              []string // files of traces; the paths in the first file come first
	store               string   // a directory that keeps converted layers; empty: a temporary one
	plainHTTP           bool
	source, destination string // references
}

// convert converts an image as the options describe, for this machine's platform.
func convert(ctx context.Context, o convertOptions) (err error) {
	paths, err := readTraces(o.traces)
	if err != nil {
		return err
	}
	if o.store == "" {
		if o.store, err = os.MkdirTemp("", "stargz"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.store)) }()
	}
	lock, err := lockStore(o.store)
	if err != nil {
		return err
	}
	defer lock.Close()
	store, err := local.NewLabeledStore(o.store, labels(filepath.Join(o.store, "labels")))
	if err != nil {
		return err
	}
	platform := platforms.DefaultStrict()
	registry := docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithPlainHTTP(func(string) (bool, error) { return o.plainHTTP, nil }))})
	source, err := fetch(ctx, registry, store, o.source, platform)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", o.source, err)
	}
	manifest, err := images.Manifest(ctx, store, source, platform)
	if err != nil {
		return fmt.Errorf("%s: %w", o.source, err)
	}
	first, err := assign(ctx, store, manifest, paths)
	if err != nil {
		return fmt.Errorf("%s: %w", o.source, err)
	}
	layer := kept{dir: o.store, kind: o.kind, first: first}.convert
	converted, err := converter.DefaultIndexConvertFunc(layer, true, platform)(ctx, store, source)
	if err != nil {
		return fmt.Errorf("convert %s: %w", o.source, err)
	}
	if converted == nil {
		converted = &source // the image has no layers
	}
	pusher, err := registry.Pusher(ctx, o.destination)
	if err != nil {
		return fmt.Errorf("push %s: %w", o.destination, err)
	}
	if err := remotes.PushContent(ctx, pusher, *converted, store, nil, platform, nil); err != nil {
		return fmt.Errorf("push %s: %w", o.destination, err)
	}
	return report(ctx, store, o, *converted, first)
}

// fetch copies the parts of an image for the platform to the store.
func fetch(ctx context.Context, registry remotes.Resolver, store content.Store, ref string,
	platform platforms.MatchComparer) (ocispec.Descriptor, error) {
	name, image, err := registry.Resolve(ctx, ref)
	if err != nil {
		return image, err
	}
	fetcher, err := registry.Fetcher(ctx, name)
	if err != nil {
		return image, err
	}
	children := images.LimitManifests(images.FilterPlatforms(images.ChildrenHandler(store), platform), platform, 1)
	return image, images.Dispatch(ctx, images.Handlers(remotes.FetchHandler(store, fetcher), children), nil, image)
}

// convertLayer converts a layer like the peer's converter. The files in first are at the beginning
// of the converted layer.
func convertLayer(ctx context.Context, store content.Store, kind string, layer ocispec.Descriptor,
	first []string) (*ocispec.Descriptor, error) {
	var options []estargz.Option
	if len(first) > 0 {
		options = append(options, estargz.WithPrioritizedFiles(first))
	}
	if kind == zstdchunkedKind {
		return tozstdchunked.LayerConvertFunc(options...)(ctx, store, layer)
	}
	return toestargz.LayerConvertFunc(options...)(ctx, store, layer)
}

// report prints a description of the converted image, as JSON.
func report(ctx context.Context, store content.Store, o convertOptions, image ocispec.Descriptor,
	first map[digest.Digest][]string) error {
	manifest, err := images.Manifest(ctx, store, image, platforms.DefaultStrict())
	if err != nil {
		return err
	}
	made := struct {
		Reference string `json:"reference"`
		Digest    string `json:"digest"`
		Kind      string `json:"kind"`
		Layers    int    `json:"layers"`
		Bytes     int64  `json:"bytes"` // of the layers, compressed
		First     int    `json:"first"` // files that are prefetched
	}{Reference: o.destination, Digest: image.Digest.String(), Kind: o.kind, Layers: len(manifest.Layers)}
	for _, layer := range manifest.Layers {
		made.Bytes += layer.Size
	}
	for _, paths := range first {
		made.First += len(paths)
	}
	return json.NewEncoder(os.Stdout).Encode(made)
}
