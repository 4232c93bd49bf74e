package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/awslabs/soci-snapshotter/soci"
	"github.com/awslabs/soci-snapshotter/soci/store"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// convert adds a SOCI index to an image, for this machine's platform. The layers stay the same.
func convert(ctx context.Context, source, destination string, plainHTTP bool) (err error) {
	// The peer prints its progress to os.Stdout, but this program prints only the result there.
	out := os.Stdout
	os.Stdout = os.Stderr
	dir, err := os.MkdirTemp("", "soci")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	blobs, err := local.NewStore(dir)
	if err != nil {
		return err
	}
	platform := platforms.DefaultStrict()
	registry := docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithPlainHTTP(func(string) (bool, error) { return plainHTTP, nil }))})
	image, err := fetch(ctx, registry, blobs, source, platform)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", source, err)
	}
	indexed, err := index(ctx, dir, blobs, image)
	if err != nil {
		return fmt.Errorf("index %s: %w", source, err)
	}
	pusher, err := registry.Pusher(ctx, destination)
	if err != nil {
		return fmt.Errorf("push %s: %w", destination, err)
	}
	if err := remotes.PushContent(ctx, pusher, *indexed, blobs, nil, platforms.All, nil); err != nil {
		return fmt.Errorf("push %s: %w", destination, err)
	}
	return json.NewEncoder(out).Encode(map[string]string{"reference": destination, "digest": indexed.Digest.String(),
		"kind": "soci"})
}

// fetch copies the parts of an image for the platform.
func fetch(ctx context.Context, registry remotes.Resolver, blobs content.Store, ref string,
	platform platforms.MatchComparer) (ocispec.Descriptor, error) {
	name, image, err := registry.Resolve(ctx, ref)
	if err != nil {
		return image, err
	}
	fetcher, err := registry.Fetcher(ctx, name)
	if err != nil {
		return image, err
	}
	children := images.LimitManifests(images.FilterPlatforms(images.ChildrenHandler(blobs), platform), platform, 1)
	return image, images.Dispatch(ctx, images.Handlers(remotes.FetchHandler(blobs, fetcher), children), nil, image)
}

// index adds the SOCI index. The index's blobs are stored in the directory of the image's blobs:
// the stores of the peer and of containerd both name a file by its digest.
func index(ctx context.Context, dir string, blobs content.Store, image ocispec.Descriptor) (*ocispec.Descriptor,
	error) {
	parts, err := store.NewSociStore(dir)
	if err != nil {
		return nil, err
	}
	db, err := soci.NewDB(filepath.Join(dir, "artifacts.db"))
	if err != nil {
		return nil, err
	}
	builder, err := soci.NewIndexBuilder(blobs, parts, soci.WithArtifactsDb(db))
	if err != nil {
		return nil, err
	}
	return builder.Convert(ctx, images.Image{Target: image})
}
