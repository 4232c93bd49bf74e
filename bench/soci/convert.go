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
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"
)

// indexer makes SOCI indexes of images, for this machine's platform. The layers stay the same.
type indexer struct {
	plainHTTP bool
	dir       string // temporary
	out       *os.File
	registry  remotes.Resolver
	blobs     content.Store    // of images
	parts     *store.SociStore // of indexes. Both stores are in dir, and name a file by its digest.
	builder   *soci.IndexBuilder
}

// newIndexer returns an indexer that makes no index of layers of less than minLayerSize bytes. The
// caller closes it.
func newIndexer(plainHTTP bool, minLayerSize int64) (i *indexer, err error) {
	// The peer prints its progress to os.Stdout, but this program prints only the result there.
	i = &indexer{plainHTTP: plainHTTP, out: os.Stdout}
	os.Stdout = os.Stderr
	if i.dir, err = os.MkdirTemp("", "soci"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.close())
		}
	}()
	if i.blobs, err = local.NewStore(i.dir); err != nil {
		return nil, err
	}
	if i.parts, err = store.NewSociStore(i.dir); err != nil {
		return nil, err
	}
	i.registry = docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithPlainHTTP(func(string) (bool, error) { return plainHTTP, nil }))})
	db, err := soci.NewDB(filepath.Join(i.dir, "artifacts.db"))
	if err != nil {
		return nil, err
	}
	i.builder, err = soci.NewIndexBuilder(i.blobs, i.parts, soci.WithArtifactsDb(db), soci.WithMinLayerSize(minLayerSize))
	return i, err
}

func (i *indexer) close() error { return os.RemoveAll(i.dir) }

// convert makes an image with an index of version 2.
func (i *indexer) convert(ctx context.Context, source, destination string) error {
	image, err := i.fetch(ctx, source)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", source, err)
	}
	indexed, err := i.builder.Convert(ctx, images.Image{Target: image})
	if err != nil {
		return fmt.Errorf("index %s: %w", source, err)
	}
	pusher, err := i.registry.Pusher(ctx, destination)
	if err != nil {
		return fmt.Errorf("push %s: %w", destination, err)
	}
	if err := remotes.PushContent(ctx, pusher, *indexed, i.blobs, nil, platforms.All, nil); err != nil {
		return fmt.Errorf("push %s: %w", destination, err)
	}
	return i.report(destination, *indexed)
}

// create pushes an index of version 1 beside an image.
func (i *indexer) create(ctx context.Context, name string) error {
	image, err := i.fetch(ctx, name)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", name, err)
	}
	index, err := i.builder.Build(ctx, images.Image{Target: image})
	if err != nil {
		return fmt.Errorf("index %s: %w", name, err)
	}
	to, err := remote.NewRepository(name)
	if err != nil {
		return fmt.Errorf("push the index of %s: %w", name, err)
	}
	to.PlainHTTP = i.plainHTTP
	if err := oras.CopyGraph(ctx, i.parts, to, index.Desc, oras.DefaultCopyGraphOptions); err != nil {
		return fmt.Errorf("push the index of %s: %w", name, err)
	}
	return i.report(name, index.Desc)
}

func (i *indexer) report(name string, made ocispec.Descriptor) error {
	return json.NewEncoder(i.out).Encode(map[string]string{"reference": name, "digest": made.Digest.String(),
		"kind": "soci"})
}

// fetch copies the parts of an image for the platform.
func (i *indexer) fetch(ctx context.Context, ref string) (ocispec.Descriptor, error) {
	name, image, err := i.registry.Resolve(ctx, ref)
	if err != nil {
		return image, err
	}
	fetcher, err := i.registry.Fetcher(ctx, name)
	if err != nil {
		return image, err
	}
	platform := platforms.DefaultStrict()
	children := images.LimitManifests(images.FilterPlatforms(images.ChildrenHandler(i.blobs), platform), platform, 1)
	return image, images.Dispatch(ctx, images.Handlers(remotes.FetchHandler(i.blobs, fetcher), children), nil, image)
}
